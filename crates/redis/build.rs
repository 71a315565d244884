//! Has the Lua scripts put together.

use std::path::PathBuf;
use std::{env, fs};

#[path = "src/lua/assembly.rs"]
mod assembly;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", assembly::LUA);
    println!("cargo:rerun-if-changed={}", assembly::TABLES);
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("scripts.rs"), assembly::module()).expect("OUT_DIR is writable");
}

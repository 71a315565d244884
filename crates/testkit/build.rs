//! Names the program that Cargo builds for the tests. Cargo itself tells only the tests of its
//! package.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // target/PROFILE/build/PACKAGE/out
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folder = out.ancestors().nth(3).expect("the folder of the profile is above OUT_DIR");
    println!("cargo:rustc-env=RLOCK_BUILT={}", folder.join("rlock").display());
}

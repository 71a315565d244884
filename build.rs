//! Links the binary statically if the C library allows it, and finds the commit that `rlock
//! --version` tells.
//!
//! A static binary starts in half the time of a dynamic one: it needs no loader and no relocation.
//! Starting is most of what `rlock exec` costs. A static binary also runs on any machine that it is
//! copied to.
//!
//! `-C target-feature=+crt-static` would have the same effect. But as a flag for all crates, it
//! breaks the procedural macros that some build dependencies use. A package cannot set a flag for
//! one crate only. So rustc links as usual, but finds archives first where it looks for shared
//! libraries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The libraries that rustc names when it links against glibc. libgcc_s has no archive; libgcc_eh
/// has the symbols of libgcc_s that std needs.
const LIBRARIES: [(&str, &str); 7] = [
    ("libgcc_s.a", "libgcc_eh.a"),
    ("libc.a", "libc.a"),
    ("libm.a", "libm.a"),
    ("libdl.a", "libdl.a"),
    ("librt.a", "librt.a"),
    ("libpthread.a", "libpthread.a"),
    ("libutil.a", "libutil.a"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR"));
    let linking = if link_statically(&out) { "static" } else { "dynamic" };
    println!("cargo:rustc-env=RLOCK_TARGET={}, {linking}", env::var("TARGET").expect("cargo sets TARGET"));
    println!("cargo:rustc-env=RLOCK_COMMIT={}", commit().as_deref().unwrap_or("unknown"));
}

/// The commit that an optimised build is made from: git knows it, unless the repository around the
/// sources is another one. A debug build has none, because every commit would build the crate anew.
fn commit() -> Option<String> {
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    if !Path::new(".git").exists() {
        return None;
    }
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let moved = ["HEAD", "logs/HEAD"].map(|file| git(&["rev-parse", "--git-path", file]));
    let changed = ["src", "crates", "Cargo.toml", "Cargo.lock"].map(|path| Some(path.to_owned()));
    for path in moved.into_iter().chain(changed).flatten().filter(|path| Path::new(path).exists()) {
        println!("cargo:rerun-if-changed={path}");
    }
    git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"])
}

/// Whether the binary is static now.
fn link_statically(out: &Path) -> bool {
    let target = |key: &str| env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let is_host = env::var("HOST") == env::var("TARGET");
    let already_static = is_static_by_default();
    if already_static || target("OS") != "linux" || target("ENV") != "gnu" || !is_host {
        return already_static;
    }
    let Some(archives) = LIBRARIES.iter().map(|(_, archive)| find(archive)).collect::<Option<Vec<_>>>() else {
        return false;
    };
    for ((asked, _), archive) in LIBRARIES.iter().zip(archives) {
        fs::write(out.join(asked), format!("INPUT ( {archive} )\n")).expect("OUT_DIR is writable");
    }
    // The benches are linked statically too: one of them is the command whose start is measured,
    // and its own start must cost little.
    for kind in ["bins", "benches"] {
        for argument in [&format!("-L{}", out.display()), "-static", "-no-pie"] {
            println!("cargo:rustc-link-arg-{kind}={argument}");
        }
    }
    true
}

/// Whether rustc links statically without help. CARGO_CFG_TARGET_FEATURE does not name `crt-static`
/// for the targets of musl, so rustc is asked.
fn is_static_by_default() -> bool {
    let variable = |name| env::var(name).expect("cargo sets the variable");
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--print=cfg", "--target", &variable("TARGET")]);
    rustc.args(flags.split('\u{1f}').filter(|flag| !flag.is_empty()));
    let answer = rustc.output().expect("rustc can be started").stdout;
    String::from_utf8_lossy(&answer).lines().any(|line| line == "target_feature=\"crt-static\"")
}

/// The path of an archive that comes with the C compiler or its library. Some distributions have
/// libc.a in a package of its own.
fn find(archive: &str) -> Option<String> {
    let answer = Command::new("cc").arg(format!("-print-file-name={archive}")).output().ok()?;
    let path = String::from_utf8(answer.stdout).ok()?.trim().to_owned();
    Path::new(&path).is_absolute().then_some(path)
}

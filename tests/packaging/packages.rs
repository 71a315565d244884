//! Installs each package into a folder of its own, and runs the installed program there.

use std::path::Path;
use std::process::Command;

use super::{Lab, Ran, package, root, sh};
use rlock_testkit::needs::{programs, root as as_root, skip_unless};

/// What every package of a distribution has, besides the licences and the zsh completion, whose
/// places differ.
const FILES: [&str; 14] = [
    "usr/bin/rlock",
    "usr/lib/systemd/system/rlock.service",
    "usr/lib/systemd/system/rlock.socket",
    "usr/share/bash-completion/completions/rlock",
    "usr/share/doc/rlock-cli/changelog.gz",
    "usr/share/doc/rlock-cli/README.md",
    "usr/share/doc/rlock-cli/SECURITY.md",
    "usr/share/doc/rlock-cli/docs/design.md",
    "usr/share/doc/rlock-cli/examples/serve/client.py",
    "usr/share/fish/vendor_completions.d/rlock.fish",
    "usr/share/man/man1/rlock.1.gz",
    "usr/share/man/man1/rlock-exec.1.gz",
    "usr/share/man/man7/rlock-recipes.7.gz",
    "usr/share/man/man8/rlock-serve.8.gz",
];

#[track_caller]
fn assert_complete(listing: &str, others: &[&str]) {
    let names: Vec<_> = listing.lines().map(|line| line.trim_start_matches(['.', '/'])).collect();
    let missing: Vec<_> = FILES.iter().chain(others).filter(|file| !names.contains(file)).collect();
    assert!(missing.is_empty(), "{missing:?} are missing in {listing}");
}

/// Runs an installed program on a store of its own.
#[track_caller]
fn assert_works(program: &Path) {
    let lab = Lab::new();
    let mut command = Command::new(program);
    lab.settle(&mut command);
    let version = Ran::of(Command::new(program).arg("-V"));
    version.printed(concat!("rlock ", env!("CARGO_PKG_VERSION"), "\n"));
    Ran::of(command.args(["exec", "k", "--", "echo", "hello"])).printed("hello\n");
    lab.assert_quiet();
}

/// Runs the program in a root of its own with nothing beside it. No shell is there, so the command
/// is rlock.
#[track_caller]
fn assert_works_alone(root: &Path, program: &str) {
    let script = "mkdir -p \"$1/proc\" \"$1/run\"
        exec unshare --mount --pid --fork --root=\"$1\" --mount-proc \"$2\" exec k -- \"$2\" held k";
    let ran = Ran::of(Command::new("sh").args(["-euc", script, "sh"]).arg(root).arg(program).env_clear());
    ran.silently(0);
}

#[test]
#[ignore = "needs packaging/build"]
fn debian_package_installs_into_an_empty_root_and_works_there() {
    skip_unless!(as_root("install a package") && programs(&["dpkg", "unshare"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let deb = package(".deb");
    install_deb(folder.path(), &deb);
    assert_works(&folder.path().join("usr/bin/rlock"));
    assert_works_alone(folder.path(), "/usr/bin/rlock");
    let listing = sh("dpkg --root=\"$1\" --listfiles rlock-cli", &[folder.path()]);
    let licence = "usr/share/doc/rlock-cli/copyright";
    assert_complete(&listing, &[licence, "usr/share/zsh/vendor-completions/_rlock"]);
    sh("dpkg --root=\"$1\" --purge rlock-cli", &[folder.path()]);
    assert!(!folder.path().join("usr/bin/rlock").exists(), "the package was removed");
}

/// Installs a package by dpkg below another root.
pub(super) fn install_deb(root: &Path, deb: &Path) {
    let script = "mkdir -p \"$1/var/lib/dpkg/updates\" \"$1/var/lib/dpkg/info\"
        touch \"$1/var/lib/dpkg/status\"
        dpkg --root=\"$1\" --log=/dev/null --force-script-chrootless --install \"$2\"";
    sh(script, &[root, deb]);
}

#[test]
#[ignore = "needs packaging/build"]
fn lintian_finds_nothing_in_the_debian_package() {
    skip_unless!(programs(&["lintian"]));
    assert_eq!(sh("lintian --allow-root --fail-on warning \"$1\"", &[&package(".deb")]), "");
}

#[test]
#[ignore = "needs packaging/build"]
fn rpm_installs_into_an_empty_root_and_works_there() {
    skip_unless!(as_root("install a package") && programs(&["rpm", "unshare"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let listing =
        sh("rpm --root \"$1\" --install \"$2\"; rpm --root \"$1\" -ql rlock-cli", &[folder.path(), &package(".rpm")]);
    assert_works(&folder.path().join("usr/bin/rlock"));
    assert_works_alone(folder.path(), "/usr/bin/rlock");
    let licence = "usr/share/licenses/rlock-cli/LICENSE-MIT";
    assert_complete(&listing, &[licence, "usr/share/zsh/site-functions/_rlock"]);
}

/// Debian has neither apk nor pacman, so these packages are listed and their program is run.
#[test]
#[ignore = "needs packaging/build"]
fn apk_and_arch_packages_are_complete_and_their_program_works() {
    skip_unless!(programs(&["zstd"]));
    for (ending, information) in [(".apk", "pkgname = rlock-cli\npkgver = "), (".pkg.tar.zst", "pkgname = rlock-cli\n")]
    {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let unpack = if ending == ".apk" { "gzip -dc" } else { "zstd -dc" };
        // An .apk has several archives one after the other.
        let script = format!("{unpack} \"$2\" | tar --extract --ignore-zeros --directory \"$1\" 2>/dev/null");
        sh(&script, &[folder.path(), &package(ending)]);
        let listing = sh("cd \"$1\" && find . -type f", &[folder.path()]);
        let licence = "usr/share/licenses/rlock-cli/LICENSE-MIT";
        assert_complete(&listing, &[licence, "usr/share/zsh/site-functions/_rlock"]);
        let package = sh("cat \"$1/.PKGINFO\"", &[folder.path()]);
        assert!(package.contains(information), "{package}");
        assert_works(&folder.path().join("usr/bin/rlock"));
    }
}

#[test]
#[ignore = "needs packaging/build"]
fn wheel_installs_by_pip_with_the_manual() {
    skip_unless!(programs(&["python3"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let script = "python3 -m venv \"$1\"
        \"$1/bin/pip\" --disable-pip-version-check install --quiet --no-index \"$2\"
        \"$1/bin/pip\" --disable-pip-version-check list --format freeze";
    let listing = sh(script, &[folder.path(), &package(".whl")]);
    assert!(listing.contains(concat!("rlock-cli==", env!("CARGO_PKG_VERSION"))), "{listing}");
    assert_works(&folder.path().join("bin/rlock"));
    assert!(folder.path().join("share/man/man1/rlock-exec.1.gz").exists());
}

#[test]
#[ignore = "needs packaging/build"]
fn tarball_has_the_checksum_and_works_where_it_is_unpacked() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let tarball = package(".tar.gz");
    sh("cd \"$(dirname \"$1\")\" && sha256sum --check --quiet SHA256SUMS", &[&tarball]);
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &tarball]);
    assert_works(&folder.path().join("bin/rlock"));
    assert!(folder.path().join("share/licenses/rlock-cli/LICENSE-APACHE").exists());
}

#[test]
#[ignore = "needs packaging/build"]
fn image_has_the_program_alone_and_runs_it() {
    skip_unless!(as_root("unpack an image") && programs(&["skopeo", "umoci", "unshare"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let script = "skopeo copy --quiet \"oci-archive:$2\" \"oci:$1/layout:v\"
        umoci unpack --image \"$1/layout:v\" \"$1/bundle\"
        skopeo inspect --config \"oci:$1/layout:v\"";
    let config = sh(script, &[folder.path(), &package(".oci.tar")]);
    let config: serde_json::Value = serde_json::from_str(&config).expect("skopeo prints JSON");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/rlock"]));
    let rootfs = folder.path().join("bundle/rootfs");
    assert_eq!(sh("cd \"$1\" && find . -type f | sort", &[&rootfs]).lines().last(), Some("./rlock"));
    assert_works(&rootfs.join("rlock"));
    assert_works_alone(&rootfs, "/rlock");
    // README.md states the size.
    let size = std::fs::metadata(package(".oci.tar")).expect("the image is a file").len();
    assert!(size < 6 << 20, "{size} bytes");
}

/// The list of crates that cargo-auditable has put into a program.
fn crates_of(folder: &Path, program: &Path) -> Vec<serde_json::Value> {
    let script = "objcopy -O binary --only-section=.dep-v0 --set-section-flags .dep-v0=alloc \"$2\" \"$1/list\"
        python3 -c 'import sys, zlib; print(zlib.decompress(open(sys.argv[1], \"rb\").read()).decode())' \"$1/list\"";
    let list: serde_json::Value = serde_json::from_str(&sh(script, &[folder, program])).expect("the list is JSON");
    list["packages"].as_array().expect("a list").clone()
}

fn text_of(value: &serde_json::Value) -> &str {
    value.as_str().expect("a text")
}

/// The packaged program needs no loader, so no glibc; it names no path of the machine that built
/// it; and it carries the list of its crates.
#[test]
#[ignore = "needs packaging/build"]
fn packaged_program_is_static_names_no_path_and_lists_its_crates() {
    skip_unless!(programs(&["readelf", "objcopy", "python3"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &package(".tar.gz")]);
    let program = folder.path().join("bin/rlock");
    assert!(!sh("readelf --wide --segments \"$1\"", &[&program]).contains("INTERP"));
    let bytes = std::fs::read(&program).expect("the program can be read");
    let home = std::env::var("HOME").unwrap_or_default();
    for path in [env!("CARGO_MANIFEST_DIR"), home.as_str(), "registry/src"] {
        let is_named = path.len() > 1 && bytes.windows(path.len()).any(|window| window == path.as_bytes());
        assert!(!is_named, "the program names {path}");
    }
    let list = crates_of(folder.path(), &program);
    let names: Vec<_> = list.iter().map(|linked| &linked["name"]).collect();
    for name in ["rlock-cli", "lmdb-master-sys", "rustls"] {
        assert!(names.iter().any(|other| *other == name), "{name} is not in {names:?}");
    }
}

/// The list in the program, which cargo-auditable made, says what was linked. A crate is in it with
/// its version.
#[test]
#[ignore = "needs packaging/build"]
fn packages_have_the_licence_text_of_each_linked_crate() {
    skip_unless!(programs(&["objcopy", "python3", "dpkg-deb", "skopeo", "umoci"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let unpack = "mkdir \"$1/deb\" \"$1/tar\" \"$1/wheel\"
        dpkg-deb -x \"$2\" \"$1/deb\"
        tar -xzf \"$3\" -C \"$1/tar\" --strip-components 1
        python3 -m zipfile -e \"$4\" \"$1/wheel\"
        skopeo copy --quiet \"oci-archive:$5\" \"oci:$1/layout:v\"
        umoci unpack --rootless --image \"$1/layout:v\" \"$1/bundle\"";
    sh(unpack, &[folder.path(), &package(".deb"), &package(".tar.gz"), &package(".whl"), &package(".oci.tar")]);
    let info = concat!("wheel/rlock_cli-", env!("CARGO_PKG_VERSION"), ".dist-info");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect(name);
    let text = read("deb/usr/share/doc/rlock-cli/third-party-licenses.txt");
    for copy in ["tar/share/licenses/rlock-cli", &format!("{info}/licenses"), "bundle/rootfs/licenses"]
        .map(|place| format!("{place}/third-party-licenses.txt"))
    {
        assert_eq!(read(&copy), text, "{copy}");
    }
    let target = sh("\"$1/tar/bin/rlock\" --version", &[folder.path()]);
    let library = if target.contains("-musl") { "musl" } else { "the GNU C Library" };
    assert!(
        text.contains(&format!("The C library is {library},")) && text.contains(&format!("\n{library}\n")),
        "{target}"
    );
    assert!(read(&format!("{info}/METADATA")).contains("\nLicense-File: third-party-licenses.txt\n"));
    let list = crates_of(folder.path(), &folder.path().join("tar/bin/rlock"));
    let linked = list.iter().filter(|linked| linked["kind"] != "build" && linked["root"] != true);
    let names: Vec<_> =
        linked.map(|linked| format!("{} {}", text_of(&linked["name"]), text_of(&linked["version"]))).collect();
    let missing: Vec<_> = names.iter().filter(|name| !text.contains(&format!("\n{name}: LICEN"))).collect();
    assert!(names.len() > 50, "{names:?}");
    assert!(missing.is_empty(), "{missing:?} have no text");
}

/// A crate without a licence text fails the build of the packages.
#[test]
fn crate_without_a_licence_text_is_refused() {
    skip_unless!(programs(&["python3", "cargo"]));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let script = r#"cd "$1"
        for name in whole bare; do
            mkdir -p "$name/src"
            printf '[package]\nname = "%s"\nversion = "1.2.3"\nedition = "2021"\n' "$name" >"$name/Cargo.toml"
            touch "$name/src/lib.rs"
        done
        printf '[dependencies]\nbare = { path = "../bare" }\n[workspace]\n' >>whole/Cargo.toml
        cargo generate-lockfile --quiet --offline --manifest-path whole/Cargo.toml"#;
    sh(script, &[folder.path()]);
    let licences = || {
        let mut licences = Command::new(root().join("packaging/licences"));
        Ran::of(licences.arg("--manifest-path").arg(folder.path().join("whole/Cargo.toml")))
    };
    let refused = licences();
    assert_eq!(refused.stderr, "packaging/licences: no licence text in bare 1.2.3: add one to the script\n");
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    std::fs::write(folder.path().join("bare/LICENSE"), "The terms of bare").expect("a file can be made");
    let ran = licences();
    assert!(ran.stdout.contains("\nbare 1.2.3: LICENSE\n") && ran.stdout.contains("\nThe terms of bare\n"), "{ran:?}");
    assert!(ran.stdout.contains("GNU Lesser General Public License"), "the C library is linked as well");
}

#[test]
#[ignore = "needs packaging/build"]
fn packaged_program_tells_the_commit_that_it_is_built_from() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    sh("tar -xzf \"$2\" -C \"$1\" --strip-components 1", &[folder.path(), &package(".tar.gz")]);
    let version = sh("\"$1/bin/rlock\" --version", &[folder.path()]);
    let commit = version.lines().find_map(|line| line.strip_prefix("commit: ")).expect("a line about the commit");
    let hash = commit.split(' ').next().unwrap_or_default();
    assert!(hash.len() == 40 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{version}");
    assert!(version.contains(", static\n"), "{version}");
}

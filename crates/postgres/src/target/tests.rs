//! The parts of a URL as libpq reads them, and the errors for invalid URLs.

use super::*;
use rlock_testkit::needs::{self, skip_unless};
use rlock_testkit::servers::certificates::Certificates;

fn read(url: &str) -> Result<Target, String> {
    Target::parse(url).expect("a known scheme").map_err(|error| error.to_string())
}

fn nodes(target: &Target) -> Vec<String> {
    target.servers.iter().map(|server| server.node.to_string()).collect()
}

fn complete(url: &str, secrets: &Secrets) -> Target {
    read(url).unwrap().complete(secrets, "me".to_owned(), Duration::ZERO).unwrap()
}

/// The passwords of the next connections to the servers.
fn passwords(target: &Target) -> Vec<Option<Vec<u8>>> {
    let password = |server: &Server| {
        target.load(server, None).expect("no password was refused");
        server.credentials.password().map(|password| password.reveal().to_vec())
    };
    target.servers.iter().map(password).collect()
}

#[test]
fn url_is_read_as_libpq_reads_it() {
    for (url, hosts, user, database) in [
        ("postgres://", &["/run/postgresql/.s.PGSQL.5432"][..], "me", "me"),
        ("postgresql://h", &["h:5432"], "me", "me"),
        ("postgres://u@h/d", &["h:5432"], "u", "d"),
        ("postgres://u@h", &["h:5432"], "u", "u"),
        ("postgres://a:1,b,[::1]:2/d", &["a:1", "b:5432", "[::1]:2"], "me", "d"),
        ("postgres://a,b/d?port=7", &["a:7", "b:7"], "me", "d"),
        ("postgres://a,b/d?port=7,8", &["a:7", "b:8"], "me", "d"),
        ("postgres://a:1/d?port=7", &["a:7"], "me", "d"),
        ("postgres://a:1,b/d?port=7,8", &["a:7", "b:8"], "me", "d"),
        ("postgres://:7/d?host=/run/pg,h", &["/run/pg/.s.PGSQL.7", "h:7"], "me", "d"),
        ("postgres:///d?host=/run/pg&port=5433", &["/run/pg/.s.PGSQL.5433"], "me", "d"),
        ("postgres://u@%2Frun%2Fpg:5433/d", &["/run/pg/.s.PGSQL.5433"], "u", "d"),
        ("postgres://?host=::1,h&dbname=x%20y&user=w", &["[::1]:5432", "h:5432"], "w", "x y"),
        ("postgres://?host=fe80::1%25eth0", &["[fe80::1%25eth0]:5432"], "me", "me"),
    ] {
        let target = complete(url, &Secrets::default());
        assert_eq!(
            (nodes(&target), target.user(), target.database()),
            (hosts.iter().map(ToString::to_string).collect(), user, database),
            "{url}"
        );
    }
}

#[test]
fn url_for_another_process_means_the_same_and_has_no_password() {
    for url in [
        "postgres://u:secret@h:1,g/d?sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=7",
        "postgres://u@/d%2Fx?host=/run/a%20b&port=5433&application_name=x",
        "postgres://h/d?sslrootcert=system&channel_binding=require",
        "postgres://h?sslcert=/c&sslkey=/k&sslmode=require&password=secret",
        "postgres://h?sslmode=require&sslnegotiation=direct&require_auth=%21none%2C%21md5",
    ] {
        let target = read(url).unwrap();
        let again = target.url();
        assert!(!again.contains("secret"), "{again}");
        let other = read(&again).unwrap();
        assert_eq!((other.url(), nodes(&other), &other.user), (again, nodes(&target), &target.user));
        assert_eq!((other.ssl_mode, other.database.clone()), (target.ssl_mode, target.database.clone()));
        let demands = |target: &Target| (target.is_direct, target.requires_binding, target.require_auth.clone());
        assert_eq!(demands(&other), demands(&target));
        assert!(!target.shown().contains("secret") && !target.shown().contains('@'));
    }
    assert_eq!(read("postgres://u@h/d").unwrap().shown(), "postgres://h:5432/d");
    assert_eq!(read("postgres:///d").unwrap().shown(), "postgres:///d?host=/run/postgresql&port=5432");
}

#[test]
fn password_comes_from_the_url_then_rlocks_variables_then_those_of_libpq() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a:1:d:me:one\n*:*:*:me:any\n").unwrap();
    let mut secrets = Secrets::default();
    secrets.libpq.passfile = Some(file.path().to_owned());
    let of = |url: &str, secrets: &Secrets| passwords(&complete(url, secrets));
    let both = |text: &str| vec![Some(text.as_bytes().to_vec()); 2];
    let urls = ["postgres://a:1,b/d", "postgres://me:own@a:1,b/d"];
    assert_eq!(of(urls[0], &secrets), [Some(b"one".to_vec()), Some(b"any".to_vec())]);
    secrets.libpq.password = Some("pg".into());
    assert_eq!(of(urls[0], &secrets), both("pg"));
    secrets.password = Some("rlock".into());
    assert_eq!(of(urls[0], &secrets), both("rlock"));
    assert_eq!(of(urls[1], &secrets), both("own"));
    assert_eq!(of("postgres://me:%ff@h", &secrets), [Some(b"\xff".to_vec())]);
}

#[test]
fn usual_directory_of_sockets_is_localhost_in_a_password_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "localhost:5432:me:me:usual\n/other:5432:me:me:other\n").unwrap();
    let mut secrets = Secrets::default();
    secrets.libpq.passfile = Some(file.path().to_owned());
    let of = |url: &str| passwords(&complete(url, &secrets));
    assert_eq!(of("postgres://"), [Some(b"usual".to_vec())]);
    assert_eq!(of("postgres://?host=/other"), [Some(b"other".to_vec())]);
}

#[test]
fn invalid_url_is_a_usage_error_that_shows_no_password() {
    for (url, expected) in [
        ("postgres://u:secret@h/d?sslmode=on", "unknown sslmode"),
        ("postgres://u:secret@h?target_session_attrs=standby", "takes no writes"),
        ("postgres://u:secret@h:0", "no number from 1"),
        ("postgres://u:secret@h?port=x", "no number from 1"),
        ("postgres://u:secret@a,b,c?port=1,2", "another number of ports"),
        ("postgres://u:secret@h?sslcert=/c", "give both"),
        ("postgres://u:secret@h?sslrootcert=system&sslmode=require", "verify-full"),
        ("postgres://u:secret@h?connect_timeout=soon", "no number of seconds"),
        ("postgres://u:secret@h?options=-c", "unknown option"),
        ("postgres://u:secret@h?sslnegotiation=direct", "weaker sslmode"),
        ("postgres://u:secret@h?sslnegotiation=tls", "unknown sslnegotiation"),
        ("postgres://u:secret@h?require_auth=md4", "unknown require_auth"),
        ("postgres://u:secret@h?require_auth=md5,!password", "unknown require_auth"),
        ("postgres://u:secret@h?require_auth=!!md5", "unknown require_auth"),
        ("postgres://u:secret@h?require_auth=md5,", "unknown require_auth"),
        ("postgres://u:sec/ret@h", "behind a '/'"),
        ("postgres://h?sslmode", "without a value"),
        ("postgres://a..b:1:2/x", "too many colons"),
        ("postgres://::1/x", "brackets"),
        ("postgres://u:secret@:x", "?port=5433"),
    ] {
        let text = read(url).expect_err(url);
        assert!(text.contains(expected) && !text.contains("secret") && !text.contains('\n'), "{url}: {text}");
    }
}

/// In the modes that check nothing, the file of the authority does not matter. Anybody gets a
/// certificate of the system's authorities, so one that is checked alone has to be named.
#[test]
fn file_of_the_authority_is_needed_where_it_alone_decides() {
    let complete = |query: &str| {
        let target = Target::parse(&format!("postgres://h/d?{query}")).unwrap().unwrap();
        let target = target.complete(&Secrets::default(), "me".to_owned(), Duration::from_secs(1))?;
        target.load(&target.servers[0], None).map(drop).map_err(|kind| Error::from(kind.of("h")))
    };
    for mode in ["disable", "allow", "prefer"] {
        complete(&format!("sslrootcert=/no/such/file&sslmode={mode}")).expect(mode);
    }
    let refused = |query: &str| complete(query).unwrap_err().to_string();
    assert!(refused("sslmode=verify-ca").contains("names no file of an authority"));
    assert!(refused("sslmode=require&sslrootcert=/no/such/file").contains("/no/such/file"));
}

/// Each of the hosts gets its part of the time.
#[test]
fn timeout_counts_for_each_host() {
    let limit = |url: &str| read(url).unwrap().limit(Duration::from_secs(10)).as_secs();
    assert_eq!(limit("postgres://a,b"), 10);
    assert_eq!(limit("postgres://a,b?connect_timeout=3"), 6);
    assert_eq!(limit("postgres://a,b?connect_timeout=30"), 10);
}

#[test]
fn timeout_of_libpq_counts_in_seconds_and_0_is_none() {
    let timeout = |text: &str| read(&format!("postgres://h?connect_timeout={text}")).unwrap().connect_timeout;
    assert_eq!(["0", "1", "9"].map(timeout), [None, Some(Duration::from_secs(2)), Some(Duration::from_secs(9))]);
}

/// "require_auth as libpq has it": a list permits what it names, and with `!` all else.
#[test]
fn url_permits_the_logins_that_it_names() {
    let permitted = |query: &str| {
        let target = read(format!("postgres://h/d?{query}").trim_end_matches('?')).unwrap();
        ["none", "password", "md5", "scram-sha-256"].map(|method| target.permits(method).is_ok())
    };
    for (query, expected) in [
        ("", [true; 4]),
        ("require_auth=scram-sha-256", [false, false, false, true]),
        ("require_auth=none,md5", [true, false, true, false]),
        ("require_auth=!password,!md5", [true, false, false, true]),
        ("require_auth=!none", [false, true, true, true]),
        ("require_auth=gss", [false; 4]),
    ] {
        assert_eq!(permitted(query), expected, "{query}");
    }
}

/// "The files are read at each connection": a password and certificates that have changed count,
/// and those that cannot be read at the moment stay as they were.
#[test]
fn files_are_read_again_for_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (passfile, file) = (folder.path().join("pgpass"), folder.path().join("token"));
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    let mut secrets = Secrets::default();
    secrets.libpq.passfile = Some(passfile.clone());
    let from_passfile = complete("postgres://h", &secrets);
    assert_eq!(passwords(&from_passfile), [None]);
    write(&file, "one\n");
    secrets.password_file = Some(file.clone());
    let from_file = complete("postgres://h", &secrets);
    for text in ["one", "two"] {
        write(&passfile, &format!("*:*:*:*:{text}\n"));
        write(&file, &format!("{text}\n"));
        for target in [&from_passfile, &from_file] {
            assert_eq!(passwords(target), [Some(text.as_bytes().to_vec())]);
        }
    }
    std::fs::remove_file(&passfile).unwrap();
    std::fs::remove_file(&file).unwrap();
    for target in [&from_passfile, &from_file] {
        assert_eq!(passwords(target), [Some(b"two".to_vec())]);
    }
}

/// "Certificates that can't be read, as while one file of a pair is replaced, stay as they were."
#[test]
fn certificates_that_do_not_fit_their_key_leave_those_before_in_force() {
    skip_unless!(needs::programs(&["openssl"]));
    let (certificates, other) = (Certificates::new(), Certificates::new());
    let [crt, key] = [certificates.certificate("client"), certificates.key("client")];
    let url = format!("postgres://h?sslmode=require&sslcert={}&sslkey={}", crt.display(), key.display());
    let target = complete(&url, &Secrets::default());
    let load = |before: Option<&Loaded>| target.load(&target.servers[0], before.cloned());
    let first = load(None).unwrap();
    std::fs::copy(other.certificate("client"), &crt).unwrap();
    assert!(load(None).is_err(), "the key is that of the certificate before");
    let same = |one: &Loaded, other: &Loaded| Arc::ptr_eq(one.tls.as_ref().unwrap(), other.tls.as_ref().unwrap());
    assert!(same(&load(Some(&first)).unwrap(), &first));
    std::fs::copy(other.key("client"), &key).unwrap();
    assert!(!same(&load(Some(&first)).unwrap(), &first));
}

//! The parts of each kind of URL, and the errors for invalid URLs.

use proptest::prelude::*;

use super::*;
use crate::nodes::redirected;

fn read(url: &str) -> Result<Target, String> {
    Target::parse(url).expect("a known scheme").map_err(|error| error.to_string())
}

fn tcp(host: &str, port: u16) -> Node {
    Node::Tcp { host: host.to_owned(), port }
}

fn password(target: &Target) -> Option<&[u8]> {
    target.login.password.as_ref().map(Password::reveal)
}

#[test]
fn url_of_a_single_server_is_parsed() {
    let plain = read("redis://cache").unwrap();
    assert_eq!(
        (&plain.kind, &plain.nodes[..], &plain.tls, plain.db),
        (&Kind::Single, &[tcp("cache", 6379)][..], &None, 0)
    );
    assert_eq!((&plain.login, plain.password_in_url()), (&Login::default(), false));

    let all = read("Redis://us%40er:p%3a%40ss%ff@h-1.example_x:7000/12").unwrap();
    assert_eq!((&all.nodes[..], all.db), (&[tcp("h-1.example_x", 7000)][..], 12));
    assert_eq!(all.login.username.as_deref(), Some("us@er"));
    assert_eq!((password(&all), all.password_in_url()), (Some(&b"p:@ss\xff"[..]), true));

    // In a password, an '@' and a colon are ordinary characters.
    assert_eq!(password(&read("valkey://:a@b:c@h").unwrap()), Some(&b"a@b:c"[..]));
    assert_eq!(read("redis://u:@h").unwrap().login.password, None);
    assert_eq!(read("redis://h/?db=3").unwrap().db, 3);
    assert_eq!(read("redis://h/3?db=3").unwrap().db, 3);
}

#[test]
fn ipv6_addresses_are_parsed() {
    assert_eq!(read("redis://[::1]").unwrap().nodes, [tcp("::1", 6379)]);
    assert_eq!(read("redis://[fe80::1%25eth0]:1/2").unwrap().nodes, [tcp("fe80::1%eth0", 1)]);
    assert_eq!(read("redis://[fe80::1%25eth0]:1/2").unwrap().shown(), "redis://[fe80::1%25eth0]:1");
}

#[test]
fn url_of_a_unix_socket_is_parsed() {
    let target = read("redis+unix://:pw@/run/a%20b@c.sock?db=2").unwrap();
    assert_eq!(target.nodes, [Node::Unix("/run/a b@c.sock".into())]);
    assert_eq!((target.db, password(&target)), (2, Some(&b"pw"[..])));
    assert_eq!(target.shown(), "redis+unix:///run/a%20b%40c.sock");
    assert_eq!(read("valkey+unix://localhost/s").unwrap().nodes, [Node::Unix("/s".into())]);
}

#[test]
fn url_of_sentinels_is_parsed() {
    let target = read("valkeys+sentinel://u:p@s1,s2:5,[::2]:6/my%20master/4?sentinel-password=sp&ca=ca.pem").unwrap();
    assert_eq!(target.kind, Kind::Sentinel { master: "my master".to_owned() });
    assert_eq!(target.nodes, [tcp("s1", 26379), tcp("s2", 5), tcp("::2", 6)]);
    assert_eq!((target.db, target.tls.as_ref().unwrap().ca.as_deref()), (4, Some(Path::new("ca.pem"))));
    assert_eq!(target.sentinel_login.password.as_ref().unwrap().reveal(), b"sp");
    assert_eq!(target.shown(), "valkeys+sentinel://s1:26379,s2:5,[::2]:6/my%20master");
    assert!(read("redis+sentinel://s/m?sentinel-password=x").unwrap().password_in_url());
}

#[test]
fn url_of_a_cluster_is_parsed() {
    let target = read("rediss+cluster://a,b:1/0?cert=/c&key=k%26k&server-name=cache").unwrap();
    assert_eq!((&target.kind, &target.nodes[..]), (&Kind::Cluster, &[tcp("a", 6379), tcp("b", 1)][..]));
    let tls = target.tls.as_ref().unwrap();
    assert_eq!(tls.identity, Some((PathBuf::from("/c"), PathBuf::from("k&k"))));
    assert_eq!(tls.server_name.as_deref(), Some("cache"));
    assert_eq!(target.shown(), "rediss+cluster://a:6379,b:1");
    assert_eq!(target.shown_node(&tcp("10.0.0.1", 7)), "rediss://10.0.0.1:7");
}

#[test]
fn other_schemes_are_not_parsed() {
    for url in [
        "file:///x",
        "redis:/x",
        "unix:///x",
        "rediss+unix:///x",
        "redis+tls://h",
        "redisss://h",
        "h:6379",
        "+unix:///x",
    ] {
        assert!(Target::parse(url).is_none(), "{url}");
    }
}

#[test]
fn invalid_url_is_rejected_with_advice() {
    let long = format!("redis+unix:///{}", "x".repeat(107));
    let cases = [
        ("redis://", "lacks a host"),
        ("redis:///2", "lacks a host"),
        ("redis://h,", "several hosts"),
        ("redis+cluster://h,", "lacks a host"),
        ("redis://a,b", "redis+cluster"),
        ("redis://h:", "port"),
        ("redis://h:0", "port"),
        ("redis://h:65536", "port"),
        ("redis://h:+1", "port"),
        ("redis://::1", "brackets"),
        ("redis://[::1", "without ']'"),
        ("redis://[::1]6379", "between ']' and the port"),
        ("redis://[host]", "no IPv6"),
        ("redis://a b", "characters"),
        ("redis://h%zz", "%25"),
        ("redis://%ff", "UTF-8"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/1/2", "database"),
        ("redis://h/4294967296", "database"),
        ("redis://h/1?db=2", "two different"),
        ("redis://h?db=x", "database"),
        ("redis://h?db", "without a value"),
        ("redis://h?db=1&db=1", "twice"),
        ("redis://h?tls=1", "unknown option 'tls'"),
        ("redis://h?sentinel-password=x", "for Sentinels"),
        ("redis://h?password=x", "RLOCK_PASSWORD"),
        ("redis://h?ca=x", "rediss"),
        ("redis+unix:///s?server-name=x", "rediss"),
        ("rediss://h?cert=x", "give both"),
        ("rediss://h?key=x", "give both"),
        ("rediss://h?ca=%00", "no path"),
        ("rediss://h?server-name=%ff", "plain text"),
        ("redis://h#x", "%23"),
        ("redis+unix://s", "absolute path"),
        ("redis+unix://host/s", "absolute path"),
        ("redis+unix:///", "absolute path"),
        (&long, "107"),
        ("redis+sentinel://h", "name of the primary"),
        ("redis+sentinel://h//2", "name of the primary"),
        ("redis+sentinel://h/m/x", "database"),
        ("redis+sentinel://h/m?sentinel-username=x", "give both"),
        ("redis+cluster://h/1", "uses database 0"),
        ("redis+cluster://h?db=1", "uses database 0"),
    ];
    for (url, expected) in cases {
        let error = read(url).expect_err(url);
        assert!(error.contains(expected) && !error.contains('\n'), "{url}: {error}");
    }
}

#[test]
fn password_in_the_url_precedes_any_other() {
    let other = || Some(Password::new(b"other".to_vec()));
    let own = read("redis://:own@h").unwrap().with_password(other(), None, Duration::ZERO).unwrap();
    assert_eq!(password(&own), Some(&b"own"[..]));
    let none = read("redis://user@h").unwrap();
    assert!(none.lacks_password() && !none.password_in_url());
    let completed = none.clone().with_password(other(), None, Duration::ZERO).unwrap();
    assert_eq!((password(&completed), completed.password_in_url()), (Some(&b"other"[..]), false));
    // The user name may be a password, so the error does not show it.
    let error = none.with_password(None, None, Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("RLOCK_PASSWORD") && !error.contains("user@"), "{error}");
}

#[test]
fn relative_paths_become_absolute() {
    let mut target = read("rediss://h?ca=a/ca.pem&cert=/c.pem&key=../k.pem").unwrap();
    target.anchor(|| Ok("/here".into())).unwrap();
    assert_eq!(target.url(), "rediss://h:6379?ca=/here/a/ca.pem&cert=/c.pem&key=/here/../k.pem");
    let mut absolute = read("rediss://h?ca=/ca.pem").unwrap();
    absolute.anchor(|| panic!("the directory is not needed")).unwrap();
}

#[test]
fn redirect_is_parsed_as_a_node() {
    let by = tcp("here", 1);
    for (details, expected) in [
        ("3999 127.0.0.1:6381", Some(tcp("127.0.0.1", 6381))),
        ("3999 ::1:6381", Some(tcp("::1", 6381))),
        ("3999 node.example:6381", Some(tcp("node.example", 6381))),
        ("3999 :6381", Some(tcp("here", 6381))),
        ("3999 ?:6381", Some(tcp("here", 6381))),
        ("3999", None),
        ("3999 h:x", None),
    ] {
        assert_eq!(redirected(&by, details), expected, "{details}");
    }
    assert_eq!(redirected(&Node::Unix("/s".into()), "1 :2"), None);
}

/// Pieces of URLs, most of them in a wrong place.
fn pieces() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("S3CRET".to_owned()),
        "[a-z0-9]{1,4}",
        "[@:/?#,=&%\\[\\]. +]",
        prop_oneof!["%2F", "%zz", "db=", "ca=/x", "cert=", "sentinel-password=", "[::1]", ":6379", "/0", "/m"]
            .prop_map(|s| s),
    ]
}

proptest! {
    /// No message shows a password in its place, whatever surrounds the password.
    #[test]
    fn no_message_shows_a_password(
        scheme in prop_oneof!["redis", "rediss", "valkey[+]unix", "redis[+]sentinel", "rediss[+]cluster"],
        before in proptest::collection::vec(pieces(), 0..3),
        after in proptest::collection::vec(pieces(), 0..6),
    ) {
        let url = format!("{scheme}://{}:S3CRET@{}", before.concat().replace("S3CRET", "x"), after.concat());
        match read(&url) {
            Err(error) => prop_assert!(!error.contains("S3CRET"), "{}: {}", url, error),
            Ok(target) => {
                for shown in [target.shown(), target.url(), format!("{target:?}")] {
                    // Text after the last '@' is not a password, and neither is a path.
                    let is_path = url.contains(":///") || url.contains("@/") && scheme.contains("unix");
                    let elsewhere = url.rsplit('@').next().unwrap().contains("S3CRET") || is_path;
                    prop_assert!(elsewhere || !shown.contains("S3CRET"), "{}: {}", url, shown);
                }
            }
        }
    }

    /// A nested process that gets the URL uses the same store.
    #[test]
    fn parsed_url_round_trips(
        scheme in prop_oneof![Just("redis"), Just("rediss"), Just("valkey"), Just("valkeys")],
        kind in 0..4_usize,
        user in "[a-z@:/% ]{0,4}",
        host in prop_oneof!["[a-z]{1,5}", Just("[fe80::1%25e0]".to_owned())],
        port in 1..=u16::MAX,
        db in 0..20_u32,
        name in "[a-z@:/% ü?&#]{1,6}",
        ca in proptest::option::of("/[a-z@:/% ü?&#=]{1,6}"),
    ) {
        let escape = |text: &str| encode(text.as_bytes(), b"");
        let userinfo = format!("{}:pw@", escape(&user));
        let base = match kind {
            0 => format!("{scheme}://{userinfo}{host}:{port}/{db}?"),
            1 if scheme.ends_with('s') && scheme != "redis" => format!("{scheme}://{userinfo}{host}/{db}?"),
            1 => format!("{scheme}+unix://{userinfo}/{}?db={db}", escape(&name)),
            2 => format!("{scheme}+sentinel://{userinfo}{host},b/{}/{db}?sentinel-password=sp", escape(&name)),
            _ => format!("{scheme}+cluster://{userinfo}{host},b:{port}?"),
        };
        let is_tls = scheme == "rediss" || scheme == "valkeys";
        let ca = ca.filter(|_| is_tls).map_or_else(String::new, |ca| format!("&ca={}", escape(&ca)));
        let mut expected = read(&format!("{base}{ca}")).unwrap();
        let again = read(&expected.url()).unwrap();
        expected.login.password = None;
        expected.sentinel_login.password = None;
        expected.password_in_url = false;
        prop_assert_eq!(format!("{again:?}"), format!("{expected:?}"));
    }
}

//! Decides what an error reply means for the exchange.

use redis::{ServerError, ServerErrorKind};

use crate::failure::ErrorKind;
use crate::interface::Redirect;
use crate::nodes::redirected;
use crate::target::{Kind, Target};
use rlock_store::node::Node;

/// What to do after an error reply.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Send the source of the script.
    NoScript,
    /// Ask the node that has the resources.
    Redirect(Redirect),
    /// Ask again soon: some of the keys are on their way to another node.
    TryAgain,
    /// The server can't do it.
    Failure(ErrorKind),
}

impl Verdict {
    /// Judges an error that `node` replied.
    pub(super) fn of(error: &ServerError, target: &Target, node: &Node) -> Self {
        let in_cluster = target.kind == Kind::Cluster;
        match error.kind() {
            Some(ServerErrorKind::NoScript) => Self::NoScript,
            Some(ServerErrorKind::TryAgain) if in_cluster => Self::TryAgain,
            Some(kind @ (ServerErrorKind::Moved | ServerErrorKind::Ask)) if in_cluster => {
                let asking = kind == ServerErrorKind::Ask;
                let node = error.details().and_then(|details| redirected(node, details));
                node.map_or_else(
                    || Self::Failure(ErrorKind::from_reply(error)),
                    |node| Self::Redirect(Redirect { node, asking }),
                )
            }
            _ => Self::Failure(ErrorKind::from_reply(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn judged(url: &str, text: &str) -> Verdict {
        let Ok(Value::ServerError(error)) = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) else {
            panic!("{text} is an error")
        };
        let target = Target::parse(url).unwrap().unwrap();
        Verdict::of(&error, &target, &target.nodes[0])
    }

    fn redirect(host: &str, port: u16, asking: bool) -> Verdict {
        Verdict::Redirect(Redirect { node: Node::Tcp { host: host.to_owned(), port }, asking })
    }

    #[test]
    fn error_replies_have_one_verdict_for_each_kind_of_store() {
        use ErrorKind::*;
        let single = "redis://h";
        let sentinel = "redis+sentinel://h/m";
        let cluster = "redis+cluster://h";
        for url in [single, sentinel, cluster] {
            assert_eq!(judged(url, "NOSCRIPT No matching script."), Verdict::NoScript, "{url}");
            assert_eq!(judged(url, "LOADING x"), Verdict::Failure(Loading), "{url}");
            assert_eq!(judged(url, "READONLY x"), Verdict::Failure(ReadOnly), "{url}");
            assert_eq!(judged(url, "NOAUTH x"), Verdict::Failure(NoPassword), "{url}");
        }
        for (text, in_cluster, elsewhere) in [
            ("MOVED 3999 10.0.0.1:7", redirect("10.0.0.1", 7, false), IsACluster),
            ("ASK 3999 10.0.0.1:7", redirect("10.0.0.1", 7, true), IsACluster),
            ("MOVED 3999 :7", redirect("h", 7, false), IsACluster),
            ("MOVED 3999", Verdict::Failure(IsACluster), IsACluster),
            ("TRYAGAIN x", Verdict::TryAgain, Migrating),
            ("CLUSTERDOWN x", Verdict::Failure(ClusterDown), ClusterDown),
        ] {
            assert_eq!(judged(cluster, text), in_cluster, "{text}");
            for url in [single, sentinel] {
                assert_eq!(judged(url, text), Verdict::Failure(elsewhere.clone()), "{url} {text}");
            }
        }
    }
}

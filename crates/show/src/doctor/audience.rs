//! Who else sees the locks of a store, and who may take and break them.

use super::check::Check;
use rlock_model::text::shortened;
use rlock_store::Elsewhere;
use rlock_store::facts::{DirectoryFacts, Facts};

/// The checks of what a newcomer asks about the other users of a store.
pub fn audience(facts: &Facts, namespace: &str, elsewhere: &Elsewhere) -> [Check; 2] {
    match facts {
        Facts::Directory(facts) => [
            Check::ok("seen by", seen_in_directory(facts, elsewhere)),
            Check::ok("written by", format!("{}; each of them may take and break any lock", writers(facts))),
        ],
        Facts::Server(facts) => at_server(facts.login.as_deref(), namespace),
        Facts::Database(facts) => at_server(Some(&facts.login), namespace),
    }
}

fn at_server(login: Option<&str>, namespace: &str) -> [Check; 2] {
    let user = match login {
        Some(user) => format!("clients with the rights of its user '{}'", shortened(user)),
        None => "clients that may log in".to_owned(),
    };
    [
        Check::ok("seen by", format!("every machine that reaches the server and uses namespace '{namespace}'")),
        Check::ok("written by", format!("{user}; each of them may take and break any lock")),
    ]
}

fn seen_in_directory(facts: &DirectoryFacts, elsewhere: &Elsewhere) -> String {
    let seen = format!(
        "processes on this machine that use '{}'; no other machine, and no container without this directory",
        facts.path.display()
    );
    match elsewhere.used.as_slice() {
        [] => seen,
        places => format!("{seen}; people also lock in {}, unseen here", places.join(", ")),
    }
}

fn writers(facts: &DirectoryFacts) -> String {
    let owner = format!("user {}", shortened(&facts.owner_name));
    let root = if facts.owner == 0 { "" } else { ", and root" };
    match facts.mode {
        mode if mode & 0o002 != 0 => "every user of this machine".to_owned(),
        mode if mode & 0o020 != 0 => format!("{owner} and the group of the directory{root}"),
        _ => format!("{owner}{root}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{place, server};
    use super::*;

    #[test]
    fn writers_of_a_directory_follow_from_its_mode() {
        let who = |owner, mode| {
            let facts = DirectoryFacts { owner, owner_name: "ada".to_owned(), mode, ..place() };
            audience(&Facts::Directory(facts), "n", &Elsewhere::default())[1].found.clone()
        };
        let end = "; each of them may take and break any lock";
        assert_eq!(who(7, 0o40700), format!("user ada, and root{end}"));
        assert_eq!(who(0, 0o40755), format!("user ada{end}"));
        assert_eq!(who(7, 0o42770), format!("user ada and the group of the directory, and root{end}"));
        assert_eq!(who(7, 0o41777), format!("every user of this machine{end}"));
    }

    #[test]
    fn directory_is_seen_on_this_machine_and_a_server_everywhere() {
        let elsewhere = Elsewhere { used: vec!["/run/lock/rlock-7 (ada)".to_owned()], unreadable: Vec::new() };
        let seen = |facts, elsewhere: &Elsewhere| audience(&facts, "n", elsewhere)[0].found.clone();
        let here = "processes on this machine that use '/run/rlock'; no other machine, and no container without this directory";
        assert_eq!(seen(Facts::Directory(place()), &Elsewhere::default()), here);
        let others = format!("{here}; people also lock in /run/lock/rlock-7 (ada), unseen here");
        assert_eq!(seen(Facts::Directory(place()), &elsewhere), others);
        let text = "every machine that reaches the server and uses namespace 'n'";
        assert_eq!(seen(Facts::Server(server(&[])), &elsewhere), text);
        let [_, writers] = audience(&Facts::Server(server(&[])), "n", &elsewhere);
        assert!(writers.found.starts_with("clients with the rights of its user '"), "{writers:?}");
    }
}

//! `--until-ready`: the lock is released once the command says that it is ready.

use std::fs;
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::Signal;

use crate::session::{Session, pid, script, until_dead};
use rlock_testkit::rights::send_lingering;
use rlock_testkit::servers::{Kind, Server};
use rlock_testkit::{Lab, needs, on_both, wait_until};

/// `sh say TEXT` sends a message as sd_notify(3) does; with another word, its process stays.
const SAY: &str = r#"
exec perl -MSocket -e '
    my ($text, $stays) = @ARGV;
    my $address = $ENV{NOTIFY_SOCKET} =~ s/^@/\0/r;
    socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die $!;
    defined send($socket, $text, 0, pack_sockaddr_un($address)) or die $!;
    if ($stays) { $| = 1; print "said\n"; sleep 1000 }
' "$@"
"#;

/// The words of an rlock whose command is this script.
fn until_ready<'w>(options: &[&'w str], command: &'w str) -> Vec<&'w str> {
    [&["exec", "k", "--until-ready"], options, &["--", "sh", "-c", command]].concat()
}

/// "READY=1 releases the lock, and COMMAND runs on." A waiter is granted the lock at once.
#[test]
fn ready_command_gives_the_lock_back_and_runs_on() {
    on_both(|lab| {
        script(lab, "say", SAY);
        let daemon = "sh say STATUS=starting; read _; sh say 'STATUS=up\nREADY=1'; echo ready; cat; exit 7";
        let mut session = Session::rlock(lab, until_ready(&["--ttl", "2s"], daemon));
        wait_until("the command holds the lock", || lab.counts("k") == (1, 0));
        let mut waiter = Session::waiter(lab, &["echo", "granted"]);
        session.types_in("go\n");
        session.output.expect("ready\n");
        waiter.output.expect("granted\n");
        assert_eq!(waiter.code(), 0);
        assert_eq!(lab.counts("k"), (0, 0));
        let history = lab.run(["history", "k", "-n", "2"]).stdout;
        assert!(history.contains("  ready "), "{history}");
        session.close();
        assert_eq!(session.code(), 7);
        assert_eq!(session.errors().all(), "");
        lab.assert_idle();
    });
}

/// "A run that became ready is a success, also for `--once-per`."
#[test]
fn run_that_became_ready_counts_as_a_success() {
    on_both(|lab| {
        script(lab, "say", SAY);
        let mut session = Session::rlock(lab, until_ready(&["--once-per", "1h"], "sh say READY=1; exit 3"));
        assert_eq!(session.code(), 3);
        lab.run(["exec", "--once-per", "1h", "k", "--", "echo", "again"]).silently(0);
    });
}

/// "A command that ends before that releases the lock as without the option."
#[test]
fn command_that_ends_before_it_is_ready_releases_the_lock() {
    on_both(|lab| {
        let mut session = Session::rlock(lab, until_ready(&[], "exit 5"));
        assert_eq!(session.code(), 5);
        assert!(lab.run(["history", "k"]).stdout.contains("  exit 5 "));
        lab.assert_idle();
    });
}

/// A release that has to wait for the store waits beside everything else, and stays a success.
#[test]
fn release_of_a_ready_command_waits_for_a_stuck_store_without_a_warning() {
    let lab = Lab::new();
    script(&lab, "say", SAY);
    let daemon = "trap 'echo heard' USR1; echo held; read _; sh say READY=1; echo said; \
                  while :; do sleep 1000 & wait; done";
    let mut session = Session::rlock(&lab, until_ready(&[], daemon));
    session.output.expect("held\n");
    let file = fs::File::open(lab.directory().join("state/lock")).expect("the store has been used");
    file.lock().expect("nobody else uses it for long");
    session.types_in("go\n");
    session.output.expect("said\n");
    session.signal(Signal::USR1);
    session.output.expect("heard\n");
    // Each of these waits for as long as the release of a command that has ended.
    for _ in 0..2 {
        assert_eq!(lab.run(["exec", "-n", "other", "--", "true"]).code(), Some(69));
    }
    drop(file);
    wait_until("the lock is free", || lab.run(["history", "k"]).stdout.contains("  ready "));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
    assert_eq!(session.errors().all(), "");
}

/// The same at a server that does not answer for a while.
#[test]
fn release_of_a_ready_command_waits_for_a_silent_server_beside_everything_else() {
    needs::skip_unless!(Kind::Redis7.is_present());
    let server = Server::start(Kind::Redis7);
    let lab = Lab::at(server.unix_url());
    script(&lab, "say", SAY);
    let daemon = "trap 'echo heard' USR1; echo held; read _; sh say READY=1; echo said; \
                  while :; do sleep 1000 & wait; done";
    let mut session = Session::rlock(&lab, until_ready(&["--connect-timeout", "60s", "--ttl", "300s"], daemon));
    session.output.expect("held\n");
    server.stop();
    session.types_in("go\n");
    session.output.expect("said\n");
    for _ in 0..3 {
        session.signal(Signal::USR1);
        session.output.expect("heard\n");
    }
    server.cont();
    wait_until("the lock is free", || lab.run(["history", "k"]).stdout.contains("  ready "));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
    assert_eq!(session.errors().all(), "");
}

/// "If rlock is killed, its guardian still ends COMMAND", and the lock is not affected.
#[test]
fn killed_rlock_takes_a_ready_command_along() {
    let lab = Lab::new();
    script(&lab, "say", SAY);
    for _ in 0..5 {
        let daemon = "trap '' TERM HUP; sh say READY=1; setsid sleep 1000 & echo $! $$; wait";
        let mut session = Session::rlock(&lab, until_ready(&[], daemon));
        let line = session.output.line();
        let (sleeper, command) = line.split_once(' ').expect("two process ids");
        wait_until("the lock is free", || lab.counts("k") == (0, 0));
        let holder = lab.hold("k");
        session.signal(Signal::KILL);
        assert_eq!(session.code(), 128 + 9);
        until_dead(pid(command));
        until_dead(pid(sleeper));
        assert_eq!(lab.counts("k"), (1, 0));
        holder.end().silently(0);
    }
    // rlock may be killed between the release and the removal of its beacon.
    assert_eq!(lab.run(["cleanup"]).code(), Some(0));
    lab.assert_idle();
}

/// "A minimum hold by `--hold-at-least` stays", and ends while the command goes on.
#[test]
fn minimum_hold_of_a_ready_command_ends_in_time() {
    on_both(|lab| {
        script(lab, "say", SAY);
        let daemon = "echo held; read _; sh say READY=1; cat";
        let mut session = Session::rlock(lab, until_ready(&["--hold-at-least", "2s"], daemon));
        session.output.expect("held\n");
        let mut waiter = Session::waiter(lab, &["echo", "granted"]);
        session.types_in("go\n");
        waiter.output.expect("granted\n");
        session.close();
        assert_eq!(session.code(), 0);
        assert_eq!(waiter.code(), 0);
        lab.assert_idle();
    });
}

#[test]
fn maximum_run_time_ends_a_ready_command() {
    let lab = Lab::new();
    script(&lab, "say", SAY);
    let mut session = Session::rlock(&lab, until_ready(&["--max-runtime", "1s"], "sh say READY=1; exec sleep 1000"));
    wait_until("the lock is free", || lab.run(["history", "k"]).stdout.contains("  ready "));
    assert_eq!(session.code(), 124);
    lab.assert_idle();
}

/// "Messages of other processes do not count", and "everything is passed on to the NOTIFY_SOCKET
/// that rlock itself has".
#[test]
fn messages_of_the_tree_alone_are_passed_on() {
    let lab = Lab::new();
    let outer = UnixDatagram::bind(lab.folder().join("outer")).expect("a socket");
    let path = lab.folder().join("outer").display().to_string();
    let lab = lab.with("NOTIFY_SOCKET", path);
    script(&lab, "say", SAY);
    let daemon = "echo $NOTIFY_SOCKET; read _; sh say READY=1; sh say STOPPING=1";
    let mut session = Session::rlock(&lab, until_ready(&[], daemon));
    let inner = session.output.line();
    assert!(inner.starts_with("@rlock/"), "{inner}");
    let mut other = Session::start(&lab, ["env", &format!("NOTIFY_SOCKET={inner}"), "sh", "say", "READY=1", "stays"]);
    other.output.expect("said\n");
    session.types_in("go\n");
    assert_eq!(session.code(), 0);
    let received = || {
        let mut bytes = [0; 100];
        let length = outer.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert_eq!([received(), received()], ["READY=1", "STOPPING=1"]);
    outer.set_nonblocking(true).expect("a flag");
    assert!(outer.recv(&mut [0; 1]).is_err(), "nothing else was passed on");
    lab.assert_idle();
}

#[test]
fn descriptors_are_passed_on() {
    needs::skip_unless!(needs::programs(&["python3"]));
    let lab = Lab::new();
    let outer = UnixDatagram::bind(lab.folder().join("outer")).expect("a socket");
    let path = lab.folder().join("outer").display().to_string();
    let lab = lab.with("NOTIFY_SOCKET", path);
    let send = "import os, socket\n\
        address = '\\0' + os.environ['NOTIFY_SOCKET'][1:]\n\
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        inner.connect(address)\n\
        socket.send_fds(inner, [b'FDSTORE=1'], os.pipe())";
    lab.run(["exec", "k", "--until-ready", "--", "python3", "-c", send]).silently(0);
    let (mut bytes, mut space) = ([0; 100], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(&outer, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty());
    let length = received.expect("a message").bytes;
    let files = control.drain().map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.count(),
        _ => 0,
    });
    assert_eq!((&bytes[..length], files.sum()), (&b"FDSTORE=1"[..], 2_usize));
}

/// The sender has ended before rlock can look at it.
#[test]
fn program_of_systemd_tells_that_the_command_is_ready() {
    needs::skip_unless!(needs::programs(&["systemd-notify"]));
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, until_ready(&[], "systemd-notify --ready && echo told; cat"));
    wait_until("the lock is free", || lab.run(["history", "k"]).stdout.contains("  ready "));
    session.output.expect("told\n");
    session.close();
    assert_eq!(session.code(), 0);
}

/// The socket of a stranger that is connected to that of this address.
fn stranger(address: &str) -> UnixDatagram {
    let name = address.strip_prefix('@').expect("the socket has no file");
    let socket = UnixDatagram::unbound().expect("a socket");
    socket.connect_addr(&SocketAddr::from_abstract_name(name).expect("a name")).expect("rlock listens");
    socket
}

/// "A descriptor of a stranger ... holds up neither rlock nor COMMAND": it is closed elsewhere.
#[test]
fn descriptor_of_a_stranger_whose_close_blocks_holds_up_nothing() {
    let lab = Lab::new();
    script(&lab, "say", SAY);
    let daemon = "echo $NOTIFY_SOCKET; read _; sh say READY=1; echo ready; exec sleep 1000";
    let mut session = Session::rlock(&lab, until_ready(&[], daemon));
    let socket = stranger(session.output.line().trim_end());
    // A running rlock might take a message while this process has the descriptor, too.
    session.signal(Signal::STOP);
    let _peers = [(); 3].map(|()| send_lingering(&socket, b"READY=1").expect("no stranger has sent any before"));
    session.signal(Signal::CONT);
    session.types_in("go\n");
    session.output.expect("ready\n");
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
    lab.assert_idle();
}

#[test]
fn descriptor_of_the_command_whose_close_blocks_holds_up_nothing() {
    needs::skip_unless!(needs::programs(&["python3"]));
    let lab = Lab::new();
    let send = "import os, socket, struct, time\n\
        listener = socket.socket()\n\
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)\n\
        listener.bind(('127.0.0.1', 0)); listener.listen()\n\
        stream = socket.create_connection(listener.getsockname())\n\
        stream.setblocking(False)\n\
        try:\n\
        \x20   while True: stream.send(bytes(65536))\n\
        except BlockingIOError: pass\n\
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 1000))\n\
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        inner.connect('\\0' + os.environ['NOTIFY_SOCKET'][1:])\n\
        print('made', flush=True)\n\
        input()\n\
        socket.send_fds(inner, [b'READY=1'], [stream.fileno()])\n\
        stream.close()\n\
        print('sent', flush=True)\n\
        time.sleep(1000)";
    let mut session = Session::rlock(&lab, ["exec", "k", "--until-ready", "--", "python3", "-c", send]);
    session.output.expect("made\n");
    session.signal(Signal::STOP);
    session.types_in("go\n");
    session.output.expect("sent\n");
    session.signal(Signal::CONT);
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
}

/// "A socket that takes no message yet gets it later ..., and READY=1 counts at once."
#[test]
fn messages_for_an_outer_socket_that_is_not_read_hold_up_nothing() {
    let lab = Lab::new();
    let outer = UnixDatagram::bind(lab.folder().join("outer")).expect("a socket");
    let path = lab.folder().join("outer").display().to_string();
    let lab = lab.with("NOTIFY_SOCKET", path);
    // rlock would need minutes if each of these messages had to wait.
    let chatty = r#"exec perl -MSocket -e '
        my $address = $ENV{NOTIFY_SOCKET} =~ s/^@/\0/r;
        socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die $!;
        for my $text ((map { "STATUS=$_" } 1 .. 2000), "READY=1", "STATUS=up") {
            defined send($socket, $text, 0, pack_sockaddr_un($address)) or die $!;
        }
        $| = 1; print "said\n"; sleep 1000'"#;
    let mut session = Session::rlock(&lab, until_ready(&[], chatty));
    session.output.expect("said\n");
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    // What the outer socket had no room for follows in order, without the oldest.
    let mut received = Vec::new();
    while received.last().is_none_or(|text| text != "STATUS=up") {
        let mut bytes = [0; 100];
        let length = outer.recv(&mut bytes).expect("a message");
        received.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
    }
    let numbers: Vec<u32> = received.iter().filter_map(|text| text.strip_prefix("STATUS=")?.parse().ok()).collect();
    assert!(numbers.is_sorted() && numbers.contains(&1) && numbers.contains(&2000), "{numbers:?}");
    assert_eq!(received[received.len() - 2], "READY=1");
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
}

/// "A message of a process that has ended by then counts if the process had the user of rlock or of
/// a process below it, or was root."
#[test]
fn message_of_an_ended_process_counts_if_its_user_has_a_process_below_rlock() {
    needs::skip_unless!(needs::root("become another user") && needs::programs(&["setpriv"]));
    let lab = Lab::new();
    let outer = UnixDatagram::bind(lab.folder().join("outer")).expect("a socket");
    let path = lab.folder().join("outer").display().to_string();
    let lab = lab.with("NOTIFY_SOCKET", path);
    let daemon = r#"
        setpriv --reuid=65533 --clear-groups sh -c 'echo began; exec sleep 1000' &
        while read user text; do
            setpriv --reuid=$user --clear-groups perl -MSocket -e '
                my $address = $ENV{NOTIFY_SOCKET} =~ s/^@/\0/r;
                socket(my $socket, AF_UNIX, SOCK_DGRAM, 0) or die $!;
                defined send($socket, $ARGV[0], 0, pack_sockaddr_un($address)) or die $!;
            ' $text
            echo said
        done"#;
    let mut session = Session::rlock(&lab, until_ready(&[], daemon));
    session.output.expect("began\n");
    session.signal(Signal::STOP);
    for message in ["65532 READY=1", "65533 STATUS=seen", "65533 READY=1"] {
        session.types_in(&format!("{message}\n"));
        session.output.expect("said\n");
    }
    session.signal(Signal::CONT);
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    let mut received = [0; 100];
    let length = outer.recv(&mut received).expect("a message");
    assert_eq!(&received[..length], b"STATUS=seen", "the first message did not count");
    session.signal(Signal::TERM);
    session.code();
}

/// As root, systemd-notify(1) sends in the name of its parent, which is rlock for
/// `exec systemd-notify` and for an orphan.
#[test]
fn message_in_the_name_of_rlock_counts() {
    needs::skip_unless!(needs::root("send in the name of another process") && needs::programs(&["python3"]));
    let send = "import os, socket, struct, time\n\
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n\
        notify.connect('\\0' + os.environ['NOTIFY_SOCKET'][1:])\n\
        credentials = struct.pack('iII', os.getppid(), os.getuid(), os.getgid())\n\
        notify.sendmsg([b'READY=1'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])\n\
        time.sleep(1000)";
    let lab = Lab::new();
    let mut session = Session::rlock(&lab, ["exec", "k", "--until-ready", "--", "python3", "-c", send]);
    wait_until("the lock is free", || lab.counts("k") == (0, 0));
    session.signal(Signal::TERM);
    assert_eq!(session.code(), 128 + 15);
}

#[test]
fn address_that_is_no_unix_socket_is_refused() {
    let lab = Lab::new().with("NOTIFY_SOCKET", "vsock:2:1234");
    let text = "NOTIFY_SOCKET 'vsock:2:1234' is not a unix socket, so --until-ready cannot pass messages on: unset it";
    lab.run(["exec", "k", "--until-ready", "--", "echo", "runs"]).said(64, text);
    lab.run(["exec", "k", "--", "echo", "runs"]).printed("runs\n");
}

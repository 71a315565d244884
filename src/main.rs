//! Parse, run, print the error once, exit: see [`rlock::cmd::main`].

fn main() {
    let code = rlock::cmd::main(std::env::args_os());
    std::process::exit(i32::from(code));
}

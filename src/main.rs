fn main(){ std::process::exit(std::process::Command::new("/usr/bin/true").status().unwrap().code().unwrap()); }

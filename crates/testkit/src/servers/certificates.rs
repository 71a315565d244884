//! A certificate authority for a test, and its certificates, made by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The authority and its certificates. The files are deleted when it is dropped.
pub struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// A new authority, with the certificates `server` (for 127.0.0.1, ::1 and localhost) and
    /// `client`.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("rlock-tls-").tempdir().expect("a folder can be made");
        let certificates = Self { folder };
        certificates.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=authority",
        );
        certificates.certify("server", "IP:127.0.0.1,IP:::1,DNS:localhost", 2);
        certificates.certify("client", "DNS:client", 2);
        certificates
    }

    /// Issues a certificate to `name` for these addresses, such as `DNS:localhost`, that is valid
    /// for `days`. With 0 days it expires a second later.
    pub fn certify(&self, name: &str, addresses: &str, days: u32) {
        let extensions = format!("subjectAltName={addresses}\n");
        fs::write(self.path(&format!("{name}.ext")), extensions).expect("a file can be made in a fresh folder");
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile {name}.ext -days {days} -out {name}.crt"
        ));
    }

    /// The certificate of the authority.
    pub fn authority(&self) -> PathBuf {
        self.certificate("ca")
    }

    /// The certificate of `name`.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.crt"))
    }

    /// The private key of `name`.
    pub fn key(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.key"))
    }

    /// The folder with all these files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, words: &str) {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(self.folder.path()).output();
        let output = output.expect("the test asked whether openssl is installed");
        assert!(output.status.success(), "openssl {words}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

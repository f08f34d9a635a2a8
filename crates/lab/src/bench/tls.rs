//! A certificate for the peer, made by openssl for the time of a bench.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use program::exit::Failure;

use crate::local::Scratch;

/// Where libnbd looks for whom it trusts, in a home folder.
const TRUSTED: &str = ".pki/libnbd";

/// What is missing to make a certificate.
pub(super) fn missing() -> Option<String> {
    let found = Command::new("openssl").arg("version").stdin(Stdio::null()).output();
    let is_there = found.is_ok_and(|output| output.status.success());
    (!is_there).then(|| "openssl is not installed, which makes the peer's certificate".to_owned())
}

/// A certificate of 127.0.0.1 that vouches for itself, in two folders: the server's, and the home of who trusts it.
pub(super) struct Certificate {
    home: PathBuf,
}

impl Certificate {
    /// Makes one in a folder of the bench.
    pub(super) fn make(scratch: &Scratch) -> Result<Self, Failure> {
        let certificate = Self { home: scratch.join("tls") };
        let (server, trusted) = (certificate.server_folder(), certificate.home.join(TRUSTED));
        let failed = |error: std::io::Error| Failure::io("cannot keep a certificate", &error);
        for folder in [&server, &trusted] {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let made = server.join("server-cert.pem");
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]);
        command.arg("-keyout").arg(server.join("server-key.pem")).arg("-out").arg(&made);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::io("cannot run openssl", &error))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::failed(format_args!("openssl failed: {}", why.trim())));
        }
        for copy in [server.join("ca-cert.pem"), trusted.join("ca-cert.pem")] {
            fs::copy(&made, copy).map_err(failed)?;
        }
        Ok(certificate)
    }

    /// What nbdkit is given.
    pub(super) fn server_folder(&self) -> PathBuf {
        self.home.join("server")
    }

    /// The home folder of whoever trusts it.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }
}

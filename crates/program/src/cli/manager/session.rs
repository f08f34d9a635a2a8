//! A manager that is asked, as somebody.

use std::env::{VarError, var};
use std::path::{Path, PathBuf};

use management::client::{Client, ClientError, Credentials, CredentialsError, Target};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::Asker;
use crate::exit::{Exit, Failure};

/// The variable that names the file.
const VARIABLE: &str = "CAUSEWAY_MANAGER";
/// The file in a folder of configurations.
const FILE: &str = "causeway/manager.toml";

/// A manager, and the file by which it is asked.
pub(super) struct Session {
    client: Client,
    credentials: Credentials,
    file: PathBuf,
}

impl Session {
    /// For the manager of this asker. Nothing is asked yet.
    pub(super) fn open(asker: &Asker) -> Result<Self, Failure> {
        let file = find(asker.manager.as_deref(), &|name| var(name))?;
        let credentials = Credentials::load(&file).map_err(|error| match &error {
            CredentialsError::Open { .. } => Failure::refused(&error),
            CredentialsError::Unreadable { .. } | CredentialsError::Wrong { .. } => Failure::usage(&error),
        })?;
        let client = Client::new(&credentials).map_err(|error| failure(&file, &error))?;
        Ok(Self { client, credentials, file })
    }

    pub(super) fn get<T: DeserializeOwned>(&mut self, target: &Target) -> Result<T, Failure> {
        self.client.get(target).map_err(|error| failure(&self.file, &error))
    }

    /// What is no document.
    pub(super) fn bytes(&mut self, target: &Target) -> Result<Vec<u8>, Failure> {
        self.client.bytes(target).map_err(|error| failure(&self.file, &error))
    }

    /// The document, or none if there is none.
    pub(super) fn find<T: DeserializeOwned>(&mut self, target: &Target) -> Result<Option<T>, Failure> {
        match self.client.get(target) {
            Ok(found) => Ok(Some(found)),
            Err(ClientError::Problem(problem)) if problem.title == "not-found" => Ok(None),
            Err(error) => Err(failure(&self.file, &error)),
        }
    }

    pub(super) fn list<T: DeserializeOwned>(&mut self, target: &Target) -> Result<Vec<T>, Failure> {
        self.client.list(target).map_err(|error| failure(&self.file, &error))
    }

    pub(super) fn put<T: DeserializeOwned>(
        &mut self,
        target: &Target,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.client.put(target, body).map_err(|error| failure(&self.file, &error))
    }

    pub(super) fn post<T: DeserializeOwned>(
        &mut self,
        target: &Target,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.client.post(target, body).map_err(|error| failure(&self.file, &error))
    }

    pub(super) fn delete<T: DeserializeOwned>(&mut self, target: &Target) -> Result<T, Failure> {
        self.client.delete(target).map_err(|error| failure(&self.file, &error))
    }

    /// The client itself.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// What it means that something was asked in vain.
    pub(super) fn failure(&self, error: &ClientError) -> Failure {
        failure(&self.file, error)
    }

    /// The same manager, by another token.
    pub(super) fn credentials_with(&self, token: String) -> Credentials {
        Credentials { token, ..self.credentials.clone() }
    }
}

fn failure(file: &Path, error: &ClientError) -> Failure {
    let file = file.display();
    match error {
        ClientError::Credentials(why) => Failure::usage(format_args!("{file}: {why}")),
        ClientError::Machine(cause) => Failure::new(Exit::of_io(cause), error),
        ClientError::Unreachable { .. } | ClientError::Unknown { .. } | ClientError::Answer { .. } => {
            Failure::unreachable(format_args!("{error} (the address is that of {file})"))
        }
        ClientError::OtherFabric { .. } => Failure::refused(format_args!(
            "{error}. If the fabric was founded anew, take its new credentials in place of {file}"
        )),
        ClientError::Certificate { .. } => {
            Failure::refused(format_args!("{error} (the credentials are {file})"))
        }
        ClientError::Problem(problem) => match problem.title.as_str() {
            "unauthorized" => {
                Failure::refused(format_args!("{} (the token is that of {file})", problem.detail))
            }
            "forbidden" => Failure::refused(format_args!("{} ({file})", problem.detail)),
            "malformed" => Failure::usage(&problem.detail),
            "busy" | "unavailable" => Failure::unreachable(&problem.detail),
            _ => Failure::refused(&problem.detail),
        },
    }
}

/// The file of the credentials: the one given, or the first of the usual ones.
fn find(
    given: Option<&Path>,
    variable: &dyn Fn(&str) -> Result<String, VarError>,
) -> Result<PathBuf, Failure> {
    let set = |name: &str| variable(name).ok().filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(file) = given.map(Path::to_owned).or_else(|| set(VARIABLE)) {
        return Ok(file);
    }
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let own = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let usual: Vec<PathBuf> =
        own.into_iter().chain([PathBuf::from("/etc")]).map(|dir| dir.join(FILE)).collect();
    // One that is there and cannot be used is told, not passed over.
    if let Some(file) = usual.iter().find(|file| std::fs::symlink_metadata(file).is_ok()) {
        return Ok(file.clone());
    }
    let places: Vec<String> = usual.iter().map(|file| file.display().to_string()).collect();
    Err(Failure::usage(format_args!(
        "which manager, and as whom? There are no credentials: none were given with --manager FILE, {VARIABLE} is not \
         set, and there is no {}. `causeway init` makes admin.toml, and `causeway token make NAME ROLE --write FILE` \
         others",
        places.join(" and no ")
    )))
}

#[cfg(test)]
mod tests {
    use management::shapes::Problem;

    use super::*;

    #[test]
    fn credentials_are_looked_for_in_one_place_after_the_other() {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join(".config/causeway");
        let look = |given: Option<&str>, set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned()).ok_or(VarError::NotPresent)
            };
            find(given.map(Path::new), &variable)
        };
        let root = home.path().to_str().unwrap();
        let here = ("HOME", root);
        assert_eq!(look(Some("a"), &[(VARIABLE, "b"), here]).unwrap(), Path::new("a"));
        assert_eq!(look(None, &[(VARIABLE, "b"), here]).unwrap(), Path::new("b"));
        let none = look(None, &[(VARIABLE, ""), here]).unwrap_err();
        assert_eq!(none.exit(), Exit::Usage);
        for place in ["--manager", VARIABLE, ".config/causeway/manager.toml", "/etc/causeway/manager.toml"] {
            assert!(none.message().contains(place), "{none}");
        }
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("manager.toml"), "").unwrap();
        assert_eq!(look(None, &[here]).unwrap(), config.join("manager.toml"));
        let elsewhere = home.path().join("elsewhere");
        let named = look(None, &[here, ("XDG_CONFIG_HOME", elsewhere.to_str().unwrap())]).unwrap_err();
        assert!(named.message().contains("elsewhere/causeway/manager.toml"), "{named}");
    }

    #[test]
    fn each_problem_has_its_exit() {
        let exit = |title: &str| {
            let (kind, title, detail) = ("about:blank".to_owned(), title.to_owned(), "why".to_owned());
            failure(Path::new("m.toml"), &ClientError::Problem(Problem { kind, title, status: 400, detail }))
        };
        for title in ["not-found", "conflict", "stale", "forbidden", "unauthorized", "internal"] {
            assert_eq!(exit(title).exit(), Exit::Refused, "{title}");
        }
        assert_eq!(exit("malformed").exit(), Exit::Usage);
        assert_eq!(exit("unavailable").exit(), Exit::Unreachable);
        assert!(exit("unauthorized").message().contains("m.toml"));
        let url = || "https://m:1".to_owned();
        let away = failure(Path::new("m.toml"), &ClientError::Unknown { url: url(), why: "cut".to_owned() });
        assert!(away.exit() == Exit::Unreachable && away.message().contains("same command again"), "{away}");
        let other = failure(Path::new("m.toml"), &ClientError::OtherFabric { url: url() });
        assert!(other.exit() == Exit::Refused && other.message().contains("another fabric"), "{other}");
    }
}

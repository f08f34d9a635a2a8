//! The scripts of `tests/guest`. They are part of the program, for an installed one has no source tree beside it: here
//! they are written to the cache, from where they run.

use crate::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names and contents. They find each other by being in one folder.
const FILES: [(&str, &str); 5] = [
    ("fetch.sh", include_str!("../../../tests/guest/fetch.sh")),
    ("initramfs.sh", include_str!("../../../tests/guest/initramfs.sh")),
    ("bootable.sh", include_str!("../../../tests/guest/bootable.sh")),
    ("init", include_str!("../../../tests/guest/init")),
    ("serve", include_str!("../../../tests/guest/serve")),
];

/// The scripts in a folder of the cache.
pub(crate) struct Scripts {
    cache: PathBuf,
    folder: PathBuf,
}

impl Scripts {
    /// Writes them, unless they are there already.
    pub(crate) fn unpack() -> Result<Self, Error> {
        Self::unpack_into(cache_folder(|name| std::env::var_os(name))?)
    }

    fn unpack_into(cache: PathBuf) -> Result<Self, Error> {
        // Named for what is in it: programs of several versions can share a cache.
        let mut hasher = DefaultHasher::new();
        FILES.hash(&mut hasher);
        let folder = cache.join(format!("scripts-{:016x}", hasher.finish()));
        if !is_whole(&folder) {
            let written = write(&cache, &folder);
            written
                .map_err(Error::io(format!("cannot write the guest's scripts to {}", folder.display())))?;
        }
        Ok(Self { cache, folder })
    }

    /// A script as a command without arguments.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(self.folder.join(name)).env("CAUSEWAY_GUEST", &self.cache);
        command
    }

    /// Runs a script; returns what it printed.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, name: &str, arguments: &[A]) -> Result<String, Error> {
        let output = self.command(name).args(arguments).output();
        let output = output.map_err(Error::io(format!("cannot run {name} with bash")))?;
        if !output.status.success() {
            return Err(Error::Missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Where everything is kept, as `fetch.sh` has it; an empty variable counts as none.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Error> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = path("CAUSEWAY_GUEST")
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("causeway/guest")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/causeway/guest")));
    let folder =
        folder.ok_or_else(|| Error::Missing("HOME is not set; name a folder in CAUSEWAY_GUEST".into()))?;
    std::path::absolute(&folder).map_err(Error::io(format!("no folder {}", folder.display())))
}

fn is_whole(folder: &Path) -> bool {
    FILES.iter().all(|(name, text)| fs::read(folder.join(name)).is_ok_and(|found| found == text.as_bytes()))
}

/// Appears at once with everything in it, for another program may be doing the same.
fn write(cache: &Path, folder: &Path) -> std::io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    fs::create_dir_all(cache)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = cache.join(format!("scripts.{}.{number}", std::process::id()));
    fs::create_dir(&new)?;
    let written = FILES.iter().try_for_each(|(name, text)| {
        let path = new.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))
    });
    let moved = written.and_then(|()| {
        if folder.exists() && !is_whole(folder) {
            fs::remove_dir_all(folder)?;
        }
        fs::rename(&new, folder)
    });
    moved.or_else(|error| {
        fs::remove_dir_all(&new)?;
        if is_whole(folder) { Ok(()) } else { Err(error) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_the_script_has_it() {
        let with = |set: &[(&str, &str)]| {
            let value =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            cache_folder(value)
        };
        let all = [("CAUSEWAY_GUEST", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(with(&all).unwrap(), Path::new("/a"));
        assert_eq!(with(&all[1..]).unwrap(), Path::new("/b/causeway/guest"));
        assert_eq!(
            with(&[("XDG_CACHE_HOME", ""), ("HOME", "/c")]).unwrap(),
            Path::new("/c/.cache/causeway/guest")
        );
        assert!(matches!(with(&[("HOME", "")]), Err(Error::Missing(_))));
    }

    #[test]
    fn scripts_are_written_once_mended_and_run() {
        let cache = std::env::temp_dir().join(format!("causeway scripts {}", std::process::id()));
        let threads: Vec<_> = (0..4)
            .map(|_| cache.clone())
            .map(|cache| std::thread::spawn(|| Scripts::unpack_into(cache).unwrap().folder))
            .collect();
        let folders: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(folders.iter().all(|folder| *folder == folders[0] && is_whole(folder)));
        fs::write(folders[0].join("init"), "half").unwrap();
        let scripts = Scripts::unpack_into(cache.clone()).unwrap();
        assert!(is_whole(&scripts.folder));
        let entries: Vec<_> = fs::read_dir(&cache).unwrap().collect();
        assert_eq!(entries.len(), 1, "nothing is left beside them: {entries:?}");
        let printed = scripts.run("fetch.sh", &["--where"]).unwrap();
        assert_eq!(Path::new(printed.trim_end()).parent(), Some(&*cache));
        let refused = scripts.run("fetch.sh", &["--check"]);
        assert!(matches!(refused, Err(Error::Missing(why)) if why.contains("fetch.sh")));
        fs::remove_dir_all(cache).unwrap();
    }
}

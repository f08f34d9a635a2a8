//! `RACK.toml`: which nodes, and where their lines are kept.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::config::{ConfigError, Problem, read_text, toml_problem};
use crate::exit::Failure;
use crate::line::Line;

/// Most nodes of a rack.
const NODES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the keys of a rack: lines and [[nodes]]")]
struct Raw {
    lines: Option<PathBuf>,
    #[serde(default)]
    nodes: Vec<RawNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a node: [[nodes]] with config")]
struct RawNode {
    config: Spanned<PathBuf>,
}

/// The nodes of a rack.
pub(super) struct Rack {
    /// Their configuration files, in the order in which they start.
    pub(super) configs: Vec<PathBuf>,
    /// For each of them, where in the file it stands.
    places: Vec<usize>,
    lines: PathBuf,
    path: PathBuf,
    text: String,
}

impl Rack {
    /// Reads and checks a file. Relative paths start at its folder.
    pub(super) fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read_text(path)?;
        let wrong = |problem| ConfigError::Wrong { path: path.to_owned(), problems: vec![problem] };
        let raw: Raw = toml::from_str(&text).map_err(|error| wrong(toml_problem(&text, &error)))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        if raw.nodes.is_empty() {
            let what = "this rack has no node: add [[nodes]] with config = \"NODE.toml\"";
            return Err(wrong(Problem::at(&text, text.len(), what)));
        }
        if let Some(extra) = raw.nodes.get(NODES_MAX) {
            let what = format!("a rack has at most {NODES_MAX} nodes");
            return Err(wrong(Problem::at(&text, extra.config.span().start, what)));
        }
        let configs = raw.nodes.iter().map(|node| folder.join(node.config.get_ref())).collect();
        let places = raw.nodes.iter().map(|node| node.config.span().start).collect();
        let lines = folder.join(raw.lines.unwrap_or_else(|| PathBuf::from("lines")));
        Ok(Self { configs, places, lines, path: path.to_owned(), text })
    }

    /// The widest name, as files suggest it: logs stand in columns.
    pub(super) fn name_width(&self) -> usize {
        let names =
            self.configs.iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().chars().count()));
        names.max().unwrap_or(0)
    }

    /// The complaint that node `index` has the name of one before it.
    pub(super) fn twice(&self, index: usize, name: &str) -> Failure {
        let what =
            format!("the name `{name}` is that of another node of this rack; give each a `name` of its own");
        let problem = Problem::at(&self.text, self.places[index], what);
        ConfigError::Wrong { path: self.path.clone(), problems: vec![problem] }.into()
    }

    /// Keeps a line where the `line_file` of other nodes finds it: `LINES/NODE/FUNCTION.line`, for this user only.
    pub(super) fn keep_line(&self, node: &str, line: &Line) -> Result<PathBuf, Failure> {
        let folder = self.lines.join(node);
        let path = folder.join(format!("{}.line", line.function()));
        let new = folder.join(format!(".{}.line.new", line.function()));
        let kept = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).and_then(|()| {
            let mut options = fs::OpenOptions::new();
            let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            writeln!(file, "{}", line.reveal())?;
            fs::rename(&new, &path)
        });
        kept.map_err(|error| Failure::io(format_args!("cannot keep a line in {}", path.display()), &error))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(text: &str) -> Result<Rack, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rack.toml");
        fs::write(&path, text).unwrap();
        Rack::load(&path)
    }

    #[test]
    fn a_rack_names_its_nodes() {
        let rack = load("[[nodes]]\nconfig = \"a.toml\"\n[[nodes]]\nconfig = \"/etc/store.toml\"\n").unwrap();
        assert!(rack.configs[0].ends_with("a.toml") && rack.configs[0].is_absolute());
        assert_eq!(rack.configs[1], Path::new("/etc/store.toml"));
        assert_eq!(rack.name_width(), 5);
        assert!(rack.twice(1, "a").to_string().contains(":4:10: the name `a`"), "{}", rack.twice(1, "a"));
    }

    #[test]
    fn the_example_is_right() {
        let rack =
            Rack::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rack.toml")).unwrap();
        assert_eq!(rack.configs.len(), 2);
        assert!(rack.configs.iter().all(|config| config.is_file()), "{:?}", rack.configs);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, complaint) in [
            ("", ":1:1: this rack has no node"),
            ("[[nodes]]\nconfg = \"a\"\n", ":2:1: unknown key `confg`; did you mean `config`?"),
            ("[[nodes]]\n", "the key `config` is missing"),
            ("lines = 3\n", ":1:9:"),
        ] {
            let error = load(text).err().unwrap().to_string();
            assert!(error.contains(complaint), "{error}");
        }
        assert!(
            Rack::load(Path::new("/nowhere/rack.toml"))
                .err()
                .unwrap()
                .to_string()
                .contains("/nowhere/rack.toml")
        );
    }

    #[test]
    fn a_line_is_kept_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rack.toml");
        fs::write(&path, "[[nodes]]\nconfig = \"a.toml\"\n").unwrap();
        let line = crate::line::tests::example();
        let kept = Rack::load(&path).unwrap().keep_line("store", &line).unwrap();
        assert_eq!(kept, folder.path().join("lines/store/nvme0.line"));
        assert_eq!(crate::line::read_line_file(&kept).unwrap(), line);
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

//! `RACK.toml`: which nodes, whether they have a manager, and where their lines are kept.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::config::{ConfigError, Problem, read_text, toml_problem};
use crate::exit::Failure;
use crate::line::Line;

/// Most nodes of a rack.
const NODES_MAX: usize = 64;
/// The folder of the fabric, if nothing is said.
const FABRIC: &str = "fabric";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the keys of a rack: lines, [manager] and [[nodes]]")]
struct Raw {
    lines: Option<PathBuf>,
    manager: Option<RawManager>,
    #[serde(default)]
    nodes: Vec<RawNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a manager: [manager] with folder, listen and names")]
struct RawManager {
    folder: Option<PathBuf>,
    listen: Option<Spanned<String>>,
    names: Option<Spanned<Vec<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a node: [[nodes]] with config and join")]
struct RawNode {
    config: Spanned<PathBuf>,
    join: Option<Spanned<bool>>,
}

/// The nodes of a rack.
pub(super) struct Rack {
    /// In the order in which they start.
    pub(super) nodes: Vec<Node>,
    /// Starts before them, if there is one.
    pub(super) manager: Option<Manager>,
    lines: PathBuf,
    path: PathBuf,
    text: String,
}

/// A node of a rack.
pub(super) struct Node {
    /// Its configuration file.
    pub(super) config: PathBuf,
    /// It belongs to the fabric of the rack's manager, and joins it where it does not yet.
    pub(super) joins: bool,
    /// Where in the rack's file it stands.
    place: usize,
}

/// The manager of a rack.
pub(super) struct Manager {
    /// The fabric's folder, as `causeway init` makes it.
    pub(super) folder: PathBuf,
    /// Where it listens, as far as the rack says so, and where that stands.
    pub(super) listen: Option<(SocketAddr, usize)>,
    /// By which names others reach it, and where these stand.
    pub(super) names: (Vec<String>, usize),
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
        let manager = raw.manager.map(|raw| manager(raw, folder, &text)).transpose().map_err(wrong)?;
        let joins = |node: &RawNode| node.join.as_ref().is_some_and(|join| *join.get_ref());
        if let (None, Some(node)) = (&manager, raw.nodes.iter().find(|node| joins(node))) {
            let place = node.join.as_ref().map_or(0, |join| join.span().start);
            let what = "this node joins a fabric, and the rack has no manager: add [manager]; or, for a fabric that is \
                        run elsewhere, take `join` out and join it once, by `causeway join`";
            return Err(wrong(Problem::at(&text, place, what)));
        }
        let node = |node: &RawNode| Node {
            config: folder.join(node.config.get_ref()),
            joins: joins(node),
            place: node.config.span().start,
        };
        let nodes = raw.nodes.iter().map(node).collect();
        let lines = folder.join(raw.lines.unwrap_or_else(|| PathBuf::from("lines")));
        Ok(Self { nodes, manager, lines, path: path.to_owned(), text })
    }

    /// The widest name, as files suggest it: logs stand in columns.
    pub(super) fn name_width(&self) -> usize {
        let names = self.nodes.iter().filter_map(|node| node.config.file_stem());
        let names = names.map(|name| name.to_string_lossy().chars().count());
        names.chain(self.manager.as_ref().map(|_| super::MANAGER.len())).max().unwrap_or(0)
    }

    /// The complaint that a node has the name of one before it.
    pub(super) fn twice(&self, node: &Node, name: &str) -> Failure {
        let other = if self.manager.is_some() && name == super::MANAGER {
            "the rack's manager"
        } else {
            "another node of this rack"
        };
        self.wrong(
            node.place,
            &format!("the name `{name}` is that of {other}; give each a `name` of its own"),
        )
    }

    /// A complaint about a place of the file.
    pub(super) fn wrong(&self, place: usize, what: &str) -> Failure {
        let problem = Problem::at(&self.text, place, what);
        ConfigError::Wrong { path: self.path.clone(), problems: vec![problem] }.into()
    }

    /// Whether a line that is not there yet will be kept there by the rack, when a node of one of these names runs.
    pub(super) fn will_have(&self, line: &Path, nodes: &[String]) -> bool {
        let lines = std::path::absolute(&self.lines).unwrap_or_default();
        nodes.iter().any(|node| line.parent() == Some(&lines.join(node)))
    }

    /// Keeps a line where the `line_file` of other nodes finds it: `LINES/NODE/FUNCTION.line`, for this user only.
    pub(super) fn keep_line(&self, node: &str, line: &Line) -> Result<PathBuf, Failure> {
        let folder = self.lines.join(node);
        let path = folder.join(format!("{}.line", line.function()));
        let kept = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        let kept = kept.and_then(|()| write_private(&path, &line.reveal()));
        kept.map_err(|error| Failure::io(format_args!("cannot keep a line in {}", path.display()), &error))?;
        Ok(path)
    }
}

fn manager(raw: RawManager, folder: &Path, text: &str) -> Result<Manager, Problem> {
    let names = raw.names.map(|names| (names.span().start, names.into_inner()));
    let names = names.map_or_else(Default::default, |(place, names)| (names, place));
    let listen = raw.listen.map(|listen| {
        let place = listen.span().start;
        let wrong = |what: String| Problem::at(text, place, what);
        let address: SocketAddr = listen.get_ref().parse().map_err(|_| {
            wrong(format!("`{}` is no ADDRESS:PORT such as 127.0.0.1:7443", listen.get_ref()))
        })?;
        if address.port() == 0 {
            return Err(wrong("choose a port, such as 7443: nodes look for their manager there".to_owned()));
        }
        if names.0.is_empty() && !address.ip().is_loopback() {
            return Err(wrong(format!(
                "by which name or address do others reach the manager at {address}? Add names = [\"HOST\"]: its \
                 certificate is good for these, and for this machine"
            )));
        }
        Ok((address, place))
    });
    Ok(Manager {
        folder: folder.join(raw.folder.unwrap_or_else(|| PathBuf::from(FABRIC))),
        listen: listen.transpose()?,
        names,
    })
}

/// Writes a file that only this user reads. It appears as a whole.
pub(super) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    writeln!(file, "{text}")?;
    fs::rename(&new, path)
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
        let configs = rack.nodes.iter().map(|node| &node.config).collect::<Vec<_>>();
        assert!(configs[0].ends_with("a.toml") && configs[0].is_absolute());
        assert_eq!(configs[1], Path::new("/etc/store.toml"));
        assert_eq!(rack.name_width(), 5);
        let twice = rack.twice(&rack.nodes[1], "a").to_string();
        assert!(twice.contains(":4:10: the name `a`"), "{twice}");
        assert!(rack.manager.is_none() && rack.nodes.iter().all(|node| !node.joins));
    }

    #[test]
    fn the_example_is_right() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        for (example, joins) in [("rack.toml", false), ("fabric-rack.toml", true)] {
            let rack = Rack::load(&examples.join(example)).unwrap();
            assert_eq!((rack.nodes.len(), rack.manager.is_some()), (2, joins), "{example}");
            assert!(rack.nodes.iter().all(|node| node.config.is_file() && node.joins == joins), "{example}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, complaint) in [
            ("", ":1:1: this rack has no node"),
            ("[[nodes]]\nconfg = \"a\"\n", ":2:1: unknown key `confg`; did you mean `config`?"),
            ("[[nodes]]\n", "the key `config` is missing"),
            ("lines = 3\n", ":1:9:"),
            (
                "[[nodes]]\nconfig = 'a'\njoin = true\n",
                ":3:8: this node joins a fabric, and the rack has no manager",
            ),
            ("[manager]\nlisten = ':7'\n[[nodes]]\nconfig = 'a'\n", ":2:10: `:7` is no ADDRESS:PORT"),
            ("[manager]\nlisten = '[::1]:0'\n[[nodes]]\nconfig = 'a'\n", ":2:10: choose a port"),
            ("[manager]\nlisten = '10.0.0.1:7'\n[[nodes]]\nconfig = 'a'\n", ":2:10: by which name"),
            ("[manager]\nfoldr = 'x'\n", "did you mean `folder`?"),
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
    fn a_rack_has_a_manager_where_it_says_so() {
        let text =
            "[manager]\nlisten = '0.0.0.0:7443'\nnames = ['m.example']\n[[nodes]]\nconfig = 'a.toml'\n";
        let rack = load(text).unwrap();
        assert_eq!(rack.name_width(), "manager".len());
        let twice = rack.twice(&rack.nodes[0], "manager").to_string();
        assert!(twice.contains(":5:10:") && twice.contains("that of the rack's manager"), "{twice}");
        let manager = rack.manager.unwrap();
        assert!(manager.folder.ends_with("fabric"));
        assert_eq!(manager.listen, Some(("0.0.0.0:7443".parse().unwrap(), 19)));
        assert_eq!(manager.names.0, ["m.example"]);
        let bare = load("[manager]\n[[nodes]]\nconfig = 'a'\njoin = true\n").unwrap();
        assert!(bare.manager.is_some_and(|manager| manager.listen.is_none()) && bare.nodes[0].joins);
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

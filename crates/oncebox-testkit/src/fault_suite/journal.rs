//! What the outside world saw: a file, so that it outlives a process that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncebox_core::{Error, Message, SendFailure, Sink};
use tempfile::TempDir;

/// A list of (what, id, detail), appended to by any number of processes.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Removes the file with the last clone; only the process that made it does.
    _directory: Option<Arc<TempDir>>,
}

impl Journal {
    /// An empty one.
    pub(crate) fn create() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        Self { path: directory.path().join("journal"), _directory: Some(Arc::new(directory)) }
    }

    /// The journal of the process that started this one.
    pub(crate) fn open(path: &Path) -> Self {
        Self { path: path.to_owned(), _directory: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, in one write: it is either there or not, whatever happens to the process.
    pub(crate) fn note(&self, what: &str, id: &str, detail: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).unwrap();
        file.write_all(format!("{what}\t{id}\t{detail}\n").as_bytes()).unwrap();
    }

    /// The ids noted under this word, copies included, in order, with their details.
    pub(crate) fn of(&self, what: &str) -> Vec<(String, String)> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        lines
            .filter_map(|parts| match parts[..] {
                [kind, id, detail] if kind == what => Some((id.to_owned(), detail.to_owned())),
                _ => None,
            })
            .collect()
    }

    /// The ids noted under this word, each once.
    pub(crate) fn ids(&self, what: &str) -> BTreeSet<String> {
        self.of(what).into_iter().map(|(id, _)| id).collect()
    }

    /// What was sent, each id with the one payload it came with.
    ///
    /// # Panics
    /// When an id was sent with two payloads.
    pub(crate) fn sent(&self) -> BTreeMap<String, String> {
        let mut sent: BTreeMap<String, String> = BTreeMap::new();
        for (id, payload) in self.of(SENT) {
            let known = sent.entry(id.clone()).or_insert_with(|| payload.clone());
            assert_eq!(*known, payload, "message {id} was sent with two payloads");
        }
        sent
    }
}

const SENT: &str = "sent";

/// A sink that confirms everything.
impl Sink for Journal {
    async fn send(&self, messages: &[Message]) -> Result<Vec<Result<(), SendFailure>>, Error> {
        for message in messages {
            self.note(SENT, &message.id, &String::from_utf8_lossy(&message.payload));
        }
        Ok(messages.iter().map(|_| Ok(())).collect())
    }
}

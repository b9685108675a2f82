//! The files of the repository, in memory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::Error;

/// Every file that is, or would be, under version control.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Path from the root, and text; a file that is not UTF-8 has none.
    files: BTreeMap<String, Option<String>>,
}

/// One text file.
#[derive(Debug, Clone, Copy)]
pub(super) struct TextFile<'a> {
    /// The path from the root, with `/` between its parts.
    pub(super) path: &'a str,
    pub(super) text: &'a str,
}

impl Tree {
    /// Reads what git tracks or would add; without git, everything but `target`.
    pub(super) fn read(root: &Path) -> Result<Self, Error> {
        let paths = match listed_by_git(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths).map_err(|error| {
                    Error::Environment(format!("cannot list the files of the repository: {error}"))
                })?;
                paths
            }
        };
        let mut files = BTreeMap::new();
        for path in paths {
            // Git also lists what was deleted but not yet committed.
            let Ok(bytes) = fs::read(root.join(&path)) else { continue };
            files.insert(path, String::from_utf8(bytes).ok());
        }
        Ok(Self { files })
    }

    /// The text files, in order of their paths.
    pub(super) fn text_files(&self) -> impl Iterator<Item = TextFile<'_>> {
        self.files.iter().filter_map(|(path, text)| Some(TextFile { path, text: text.as_deref()? }))
    }

    /// The text files whose name ends in `.` and the extension.
    pub(super) fn with_extension(&self, extension: &str) -> impl Iterator<Item = TextFile<'_>> {
        self.text_files().filter(move |file| {
            file.name().rsplit_once('.').is_some_and(|(stem, found)| !stem.is_empty() && found == extension)
        })
    }

    /// The text of one file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether the path is a file, or a folder with a file in it; the empty path is the root.
    pub(super) fn contains(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.range(folder.clone()..).next().is_some_and(|(next, _)| next.starts_with(&folder))
    }
}

impl<'a> TextFile<'a> {
    /// The last part of the path.
    pub(super) fn name(self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// Whether one of the folders above the file has this name.
    pub(super) fn is_below(self, folder: &str) -> bool {
        self.path.rsplit('/').skip(1).any(|part| part == folder)
    }

    /// The lines with their numbers, from 1.
    pub(super) fn numbered_lines(self) -> impl Iterator<Item = (usize, &'a str)> {
        (1..).zip(self.text.lines())
    }
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listed = String::from_utf8(output.stdout).ok()?;
    Some(listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if name != ".git" && path != "target" {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        Self { files: files.map(|(path, text)| (path.to_owned(), Some(text.to_owned()))).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_everything_but_the_build_output_is_read() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("crates/one/src")).unwrap();
        fs::create_dir_all(root.path().join("target/debug")).unwrap();
        fs::write(root.path().join("crates/one/src/lib.rs"), "//! One.\n").unwrap();
        fs::write(root.path().join("logo.png"), [0x89, 0xff]).unwrap();
        fs::write(root.path().join("target/debug/out"), "x").unwrap();

        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.text("crates/one/src/lib.rs"), Some("//! One.\n"));
        assert!(tree.contains("crates/one"));
        assert!(tree.contains("logo.png"));
        assert!(!tree.contains("target/debug/out"));
        assert_eq!(tree.text_files().count(), 1);
    }
}

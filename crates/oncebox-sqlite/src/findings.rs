//! What is wrong with the database, or soon will be.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use oncebox_core::Error;
use oncebox_core::admin::{Finding, Health, OVERDUE_AFTER, Overdue, Severity};
use sqlx::SqliteConnection;

use crate::error::classify;
use crate::rows::{count, duration, get, timestamp};
use crate::sql::query;
use crate::store::SqliteStore;

/// A write-ahead log of this size was not moved into the file for a long time.
const LARGE_WAL: u64 = 256 << 20;
/// Files up to this size are read whole to see whether they are sound.
const MOST_CHECKED: i64 = 256 << 20;
const MOST_CONFLICTS: usize = 1000;
/// File systems on which SQLite's locks and shared memory do not hold.
const NETWORK: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"];

impl SqliteStore {
    pub(crate) async fn find_faults(&self) -> Result<Vec<Finding>, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let mut all = settings(&mut connection).await?;
        let path = file(&mut connection).await?;
        all.extend(path.iter().flat_map(|path| file_findings(path)));
        all.extend(unsound(&mut connection).await?);
        let version = crate::migrate::check_version(self, &mut connection).await;
        drop(connection);
        if let Err(error) = version {
            all.push(Finding::new("schema", Severity::Fault, error.to_string(), "run `oncebox migrate up`"));
            return Ok(all);
        }
        for difference in self.drift().await? {
            let remedy = "undo the change, or restore the schema from its own release";
            all.push(Finding::new("schema-drift", Severity::Warning, difference, remedy));
        }
        all.extend(self.health().await?.findings());
        Ok(all)
    }

    async fn health(&self) -> Result<Health, Error> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let database_clock = timestamp(self.now(&mut connection).await?)?;
        let own_clock = Timestamp::now();
        let overdue = query(&self.sql.overdue).bind(self.shift()).bind(OVERDUE_AFTER);
        let rows = overdue.fetch_all(&mut *connection).await.map_err(classify)?;
        let overdue = rows.iter().map(|row| {
            Ok(Overdue { handler: get(row, 0)?, count: count(get(row, 1)?), longest: duration(get(row, 2)?) })
        });
        let overdue = overdue.collect::<Result<_, Error>>()?;
        drop(connection);
        Ok(Health {
            database_clock,
            own_clock,
            handlers: self.list_handlers().await?,
            overdue,
            outbox: self.list_outbox().await?,
            conflicts: self.count_conflicts(MOST_CONFLICTS).await?,
        })
    }
}

async fn settings(connection: &mut SqliteConnection) -> Result<Vec<Finding>, Error> {
    let mut all = Vec::new();
    let row = sqlx::query("pragma journal_mode").fetch_one(&mut *connection).await.map_err(classify)?;
    let journal: String = get(&row, 0)?;
    if !journal.eq_ignore_ascii_case("wal") {
        let what = format!("journal_mode is `{journal}`: readers and writers wait for each other");
        all.push(Finding::new("journal-mode", Severity::Fault, what, "run: pragma journal_mode = wal"));
    }
    let row = sqlx::query("pragma synchronous").fetch_one(connection).await.map_err(classify)?;
    let level: i64 = get(&row, 0)?;
    if level < 2 {
        let what = format!("synchronous is {level}: power loss can lose messages that were acknowledged");
        all.push(Finding::new("synchronous", Severity::Fault, what, "set synchronous = full on the pool"));
    }
    Ok(all)
}

/// The file, as SQLite has opened it.
async fn file(connection: &mut SqliteConnection) -> Result<Option<PathBuf>, Error> {
    let rows = sqlx::query("pragma database_list").fetch_all(connection).await.map_err(classify)?;
    let main = rows.iter().find(|row| get::<&str>(row, 1).is_ok_and(|name| name == "main"));
    let path: Option<String> = main.map(|row| get(row, 2)).transpose()?.flatten();
    Ok(path.filter(|path| !path.is_empty()).map(PathBuf::from))
}

fn file_findings(path: &Path) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(readable_by_others(path));
    let wal = PathBuf::from(format!("{}-wal", path.display()));
    if let Ok(size) = std::fs::metadata(&wal).map(|wal| wal.len())
        && size >= LARGE_WAL
    {
        let what = format!("the write-ahead log `{}` has {} MiB", wal.display(), size >> 20);
        let remedy =
            "end the reader that has been open for long: it keeps the log from being moved into the file";
        all.push(Finding::new("wal-large", Severity::Warning, what, remedy));
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    if let Some(kind) = network_mount(&mounts, path) {
        let what = format!("the file `{}` is on a network file system ({kind})", path.display());
        let remedy = "move it to a local disk; SQLite's locks do not hold there, and messages can be lost";
        all.push(Finding::new("network-file-system", Severity::Fault, what, remedy));
    }
    all
}

#[cfg(unix)]
fn readable_by_others(path: &Path) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o004 != 0).then(|| {
        let what = format!(
            "everybody on this machine can read the messages in `{}` (mode {mode:o})",
            path.display()
        );
        Finding::new("world-readable", Severity::Warning, what, format!("run: chmod 600 {}", path.display()))
    })
}

#[cfg(not(unix))]
fn readable_by_others(_: &Path) -> Option<Finding> {
    None
}

/// The sort of network file system that this path is on, by a text like that of `/proc/mounts`.
fn network_mount(mounts: &str, path: &Path) -> Option<String> {
    let mut nearest: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(folder), Some(kind)) = (fields.next(), fields.next()) else { continue };
        let folder = folder.replace("\\040", " ");
        let depth = Path::new(&folder).components().count();
        if path.starts_with(&folder) && nearest.is_none_or(|(nearest, _)| depth >= nearest) {
            nearest = Some((depth, kind));
        }
    }
    nearest.map(|(_, kind)| kind).filter(|kind| NETWORK.contains(kind)).map(str::to_owned)
}

/// What SQLite itself finds wrong with a file that is not too large to be read whole.
async fn unsound(connection: &mut SqliteConnection) -> Result<Option<Finding>, Error> {
    let mut bytes = 1;
    for pragma in ["pragma page_count", "pragma page_size"] {
        let row = sqlx::query(pragma).fetch_one(&mut *connection).await.map_err(classify)?;
        bytes *= get::<i64>(&row, 0)?;
    }
    if bytes > MOST_CHECKED {
        return Ok(None);
    }
    let checked = sqlx::query("pragma quick_check(1)").fetch_one(connection).await;
    let problem = match checked {
        Ok(row) => get::<String>(&row, 0)?,
        Err(error) => error.to_string(),
    };
    Ok((problem != "ok").then(|| {
        let remedy =
            "stop all processes, copy the file, and restore it from a backup or with `sqlite3 FILE .recover`";
        Finding::new("corrupt", Severity::Fault, format!("the file is damaged: {problem}"), remedy)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_tells_whether_a_file_is_far_away() {
        let mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/srv /srv nfs4 rw 0 0\n/dev/sdb1 /srv/local ext4 rw 0 0\n\
                      //box/share /mnt/my\\040share cifs rw 0 0\nshort\n";
        for (path, kind) in [
            ("/var/lib/oncebox.db", None),
            ("/srv/oncebox.db", Some("nfs4")),
            ("/srv2/oncebox.db", None),
            ("/srv/local/oncebox.db", None),
            ("/mnt/my share/oncebox.db", Some("cifs")),
        ] {
            assert_eq!(network_mount(mounts, Path::new(path)).as_deref(), kind, "{path}");
        }
    }
}

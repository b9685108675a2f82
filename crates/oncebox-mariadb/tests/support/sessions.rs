//! Which sessions have a transaction open, as InnoDB itself tells.
//!
//! Not from `information_schema.innodb_trx`: that is a copy which is not renewed while somebody reads it again within a
//! tenth of a second, so whoever waits for it to change waits for ever.

use sqlx::{MySqlConnection, Row};

/// A transaction that has begun in InnoDB and not ended.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    /// Its session does nothing at the moment.
    pub(crate) is_idle: bool,
    /// It waits for a row lock.
    #[allow(dead_code, reason = "not every test file that shares this one asks")]
    pub(crate) is_waiting: bool,
}

/// The open transactions of the sessions with this default schema.
pub(crate) async fn open_transactions(
    connection: &mut MySqlConnection,
    schema: &str,
) -> Vec<OpenTransaction> {
    let row = sqlx::query("show engine innodb status").fetch_one(&mut *connection).await.unwrap();
    let status: String = row.get(2);
    let sessions = sqlx::query("select id, command from information_schema.processlist where db = ?")
        .bind(schema)
        .fetch_all(connection)
        .await
        .unwrap();
    let mut open = Vec::new();
    let (mut is_active, mut is_waiting) = (false, false);
    for line in status.lines() {
        if line.starts_with("---TRANSACTION") {
            (is_active, is_waiting) = (line.contains("ACTIVE"), false);
        } else if line.starts_with("LOCK WAIT") {
            is_waiting = true;
        } else if let Some(rest) = line.strip_prefix("MariaDB thread id ").filter(|_| is_active) {
            let id: i64 = rest.split(',').next().unwrap().parse().unwrap();
            let session = sessions.iter().find(|row| row.get::<i64, _>(0) == id);
            open.extend(session.map(|row| {
                let command: String = row.get(1);
                OpenTransaction { is_idle: command == "Sleep", is_waiting }
            }));
            is_active = false;
        }
    }
    open
}

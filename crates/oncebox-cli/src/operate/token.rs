//! `token create`, `token list`, `token revoke`: who may use a service on this store.

use std::time::Duration;

use clap::{Args, Subcommand};
use oncebox::Error;
use oncebox::admin::{AdminStore, Role, TokenInfo};
use oncebox_server::token;
use serde_json::json;

use super::desk::change;
use super::duration;
use super::screen::{safe, table};

#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a token and print it, this once: only its hash is stored.
    Create {
        /// Its name, which stands in the audit log.
        name: String,
        /// ingest: hand messages in; read: look; operate: also pause, replay, discard; admin: everything.
        #[arg(long, value_parser = role)]
        role: Role,
        /// After how long it is worth nothing: 30s, 15m, 1h, 7d; it never ends unless set.
        #[arg(long, value_parser = duration)]
        expires_in: Option<Duration>,
    },
    /// Names, roles and expiry of all tokens.
    List {
        /// Print a JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Make a token worthless, in every process.
    Revoke {
        /// Its name.
        name: String,
    },
}

pub(super) async fn token<St: AdminStore>(store: &St, token: Token) -> Result<bool, Error> {
    match token.action {
        Action::Create { name, role, expires_in } => create(store, &name, role, expires_in).await,
        Action::List { json } => list(store, json).await,
        Action::Revoke { name } => revoke(store, &name).await,
    }
}

async fn create<St: AdminStore>(
    store: &St,
    name: &str,
    role: Role,
    expires_in: Option<Duration>,
) -> Result<bool, Error> {
    let now = store.clock().await?;
    let (secret, info) = token::create(name, role, expires_in, now).map_err(Error::invalid)?;
    let expires_at = info.expires_at.map(|at| at.to_string());
    let details = json!({ "role": role.as_str(), "expires_at": expires_at }).to_string();
    store.add_audit(&change("create-token", name, details)).await?;
    if !store.add_token(&info).await? {
        eprintln!("there is a token `{}`; revoke it first, or take another name", safe(name));
        return Ok(false);
    }
    eprintln!("this is the only time it is shown; send it as `authorization: Bearer …`");
    println!("{}", secret.expose());
    Ok(true)
}

async fn list<St: AdminStore>(store: &St, json: bool) -> Result<bool, Error> {
    let tokens = store.tokens().await?;
    let expires_at = |info: &TokenInfo| info.expires_at.map(|at| format!("{at:.0}"));
    if json {
        for info in &tokens {
            let (name, role) = (&info.name, info.role.as_str());
            let (created_at, expires_at) =
                (info.created_at.to_string(), info.expires_at.map(|at| at.to_string()));
            println!(
                "{}",
                json!({ "name": name, "role": role, "created_at": created_at, "expires_at": expires_at })
            );
        }
        return Ok(!tokens.is_empty());
    }
    if tokens.is_empty() {
        eprintln!("there is no token; `oncebox token create NAME --role ROLE` makes one");
        return Ok(false);
    }
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|info| {
            let until = expires_at(info).unwrap_or_else(|| "never".to_owned());
            vec![safe(&info.name), info.role.as_str().to_owned(), format!("{:.0}", info.created_at), until]
        })
        .collect();
    print!("{}", table(&["NAME", "ROLE", "CREATED", "EXPIRES"], &rows));
    Ok(true)
}

async fn revoke<St: AdminStore>(store: &St, name: &str) -> Result<bool, Error> {
    if !store.tokens().await?.iter().any(|info| info.name == name) {
        eprintln!("there is no token `{}`; see `oncebox token list`", safe(name));
        return Ok(false);
    }
    store.add_audit(&change("revoke-token", name, "{}".to_owned())).await?;
    let removed = store.remove_token(name).await?;
    println!("revoked {}", safe(name));
    Ok(removed)
}

fn role(text: &str) -> Result<Role, String> {
    Role::from_word(text).ok_or_else(|| "use one of ingest, read, operate, admin".to_owned())
}

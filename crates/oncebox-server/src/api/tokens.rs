//! `/api/v1/tokens`: who may use the service.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use oncebox::admin::{Role, TokenInfo};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::answer::{Answer, Answered, ErrorBody, Problem, asked};
use super::ask::{Body, Named, to_the_end};
use super::audit::write_down;
use crate::access::Actor;
use crate::config::duration;
use crate::service::App;
use crate::stores::ServiceStore;
use crate::token;
use crate::view::Moment;

/// A token to make.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewToken {
    /// Its name, which stands in the audit log.
    #[schema(min_length = 1, max_length = 100, pattern = "^[A-Za-z0-9._-]+$")]
    name: String,
    /// What it allows.
    role: RoleWord,
    /// After how long it is worth nothing, such as `30d`; it never ends unless set.
    expires_in: Option<Length>,
}

/// `ingest` hands messages in; `read` looks; `operate` also pauses, replays and discards; `admin` may do everything.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Role)]
pub(crate) enum RoleWord {
    Ingest,
    Read,
    Operate,
    Admin,
}

impl From<RoleWord> for Role {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Ingest => Self::Ingest,
            RoleWord::Read => Self::Read,
            RoleWord::Operate => Self::Operate,
            RoleWord::Admin => Self::Admin,
        }
    }
}

impl From<Role> for RoleWord {
    fn from(role: Role) -> Self {
        match role {
            Role::Ingest => Self::Ingest,
            Role::Read => Self::Read,
            Role::Operate => Self::Operate,
            Role::Admin => Self::Admin,
        }
    }
}

/// A length of time with its unit.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = String, pattern = "^[1-9][0-9]{0,4}[smhdw]$")]
pub(crate) struct Length(Duration);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).unwrap_or_default();
        let plain = (1..=5).contains(&digits.len())
            && digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.starts_with('0')
            && ["s", "m", "h", "d", "w"].contains(&unit);
        let wrong = || D::Error::custom("write 1 to 99999 and s, m, h, d or w, as in 30d");
        duration(&text).ok().filter(|_| plain).map(Self).ok_or_else(wrong)
    }
}

/// A token that was made. This is the only time it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    name: String,
    role: RoleWord,
    /// The token itself: send it as `authorization: Bearer …`. It is stored nowhere.
    token: String,
    #[schema(inline = false)]
    expires_at: Option<Moment>,
}

/// A token without the token itself.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenView {
    name: String,
    role: RoleWord,
    created_at: Moment,
    #[schema(inline = false)]
    expires_at: Option<Moment>,
}

/// All tokens of the store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    tokens: Vec<TokenView>,
}

/// Names, roles and expiry of all tokens; never the tokens themselves.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens", responses((status = 200, body = Tokens)))]
pub(crate) async fn tokens<St: ServiceStore>(State(app): State<Arc<App<St>>>) -> Answered<Tokens> {
    let view = |info: TokenInfo| TokenView {
        name: info.name,
        role: info.role.into(),
        created_at: info.created_at.into(),
        expires_at: info.expires_at.map(Moment::from),
    };
    let tokens = asked(app.inbox.store().tokens()).await?;
    Ok(Answer::ok(Tokens { tokens: tokens.into_iter().map(view).collect() }))
}

/// Makes a token and shows it, this once.
#[utoipa::path(
    post, path = "/api/v1/tokens", tag = "tokens", request_body = NewToken,
    responses(
        (status = 201, body = CreatedToken),
        (status = 409, body = ErrorBody, description = "There is one of that name, or the first one is not for an admin."),
    ),
)]
pub(crate) async fn create_token<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Body(wanted): Body<NewToken>,
) -> Answered<CreatedToken> {
    let role = Role::from(wanted.role);
    // A command may have made one a moment ago.
    asked(app.access.renew(app.inbox.store())).await?;
    if role != Role::Admin && !app.access.has_admin() {
        let text = "make one for an admin first, or nobody could use this API: from then on everything needs a token";
        return Err(Problem::Conflict(text.to_owned()));
    }
    let length = wanted.expires_in.map(|length| length.0);
    let now = asked(app.inbox.store().clock()).await?;
    let (secret, info) = token::create(&wanted.name, role, length, now).map_err(Problem::Bad)?;
    to_the_end(async move {
        let expires_at = info.expires_at.map(Moment::from);
        let details = serde_json::json!({ "role": role.as_str(), "expires_at": expires_at });
        write_down(&app, &actor, "create-token", &info.name, details).await?;
        if !asked(app.inbox.store().add_token(&info)).await? {
            return Err(Problem::Conflict(format!("there is a token `{}`; revoke it first", info.name)));
        }
        asked(app.access.renew(app.inbox.store())).await?;
        let token = secret.expose().to_owned();
        Ok(Answer::created(CreatedToken { name: info.name, role: wanted.role, token, expires_at }))
    })
    .await
}

/// Revokes a token: this process refuses it at once, every other within a second or so.
#[utoipa::path(
    delete, path = "/api/v1/tokens/{name}", tag = "tokens",
    params(("name" = String, Path, description = "The token's name.")),
    responses((status = 204, description = "It is worth nothing from now on."), (status = 404, body = ErrorBody, description = "There is no such token.")),
)]
pub(crate) async fn revoke_token<St: ServiceStore>(
    State(app): State<Arc<App<St>>>,
    Extension(actor): Extension<Actor>,
    Named(name): Named,
) -> Result<StatusCode, Problem> {
    let unknown = || Problem::NotFound("the store has no token of that name".to_owned());
    if !asked(app.inbox.store().tokens()).await?.iter().any(|info| info.name == name) {
        return Err(unknown());
    }
    to_the_end(async move {
        write_down(&app, &actor, "revoke-token", &name, serde_json::json!({})).await?;
        let removed = asked(app.inbox.store().remove_token(&name)).await?;
        asked(app.access.renew(app.inbox.store())).await?;
        if removed { Ok(StatusCode::NO_CONTENT) } else { Err(unknown()) }
    })
    .await
}

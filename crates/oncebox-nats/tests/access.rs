//! Every way in: who has what the server asks for is let in, others are told which setting to look at, without secrets.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use oncebox_core::{Message, Settle, Sink, Source};
use oncebox_nats::{NatsAuth, NatsSink, NatsSinkConfig, NatsSource, NatsSourceConfig, NatsTls};
use oncebox_testkit::within_deadline;
use serde_json::{Value, json};
use support::{fresh_number, own_server};
use xtask::certificates::Certificates;
use xtask::nats::PrivateNats;

/// Where and how to get in.
#[derive(Clone)]
struct Way {
    url: String,
    auth: NatsAuth,
    tls: NatsTls,
}

impl Way {
    fn with(url: impl Into<String>, auth: NatsAuth) -> Self {
        Self { url: url.into(), auth, tls: NatsTls::default() }
    }

    fn source(&self) -> NatsSource {
        let name = format!("s{}", fresh_number());
        let mut config = NatsSourceConfig::new(&self.url, &name, "c").create([format!("{name}.>")]);
        (config.auth, config.tls) = (self.auth.clone(), self.tls.clone());
        NatsSource::new(name, config).unwrap()
    }

    fn sink(&self, prefix: &str) -> NatsSink {
        let mut config = NatsSinkConfig::new(&self.url).prefix(prefix);
        (config.auth, config.tls) = (self.auth.clone(), self.tls.clone());
        NatsSink::new(config).unwrap()
    }

    /// A message goes there and comes back.
    async fn is_open(&self) {
        let mut source = self.source();
        source.lag().await.unwrap();
        let name = source.name().to_owned();
        let sent = self.sink(&name).send(&[Message::new("paid", "x").id("1")]).await.unwrap();
        assert_eq!(sent, [Ok(())]);
        let taken = source.next(1).await.unwrap();
        assert_eq!(taken[0].message.id, "1");
        source.settle(taken.into_iter().map(|one| (one.receipt, Settle::Accept)).collect()).await.unwrap();
    }

    /// Neither end gets in; both name the server and the setting, and no secret.
    async fn is_closed(&self, setting: &str, secret: &str) {
        let mut source = self.source();
        let errors = [
            source.next(1).await.map(drop),
            source.check().await.map(drop),
            self.sink("s").send(&[Message::new("paid", "x").id("2")]).await.map(drop),
            self.sink("s").check().await.map(drop),
        ];
        for error in errors {
            let error = error.expect_err("it must not get in").to_string();
            assert!(error.contains(setting), "it does not say `{setting}`: {error}");
            assert!(!error.contains(secret), "it shows the secret: {error}");
        }
    }
}

fn password(user: &str, password: &str) -> NatsAuth {
    NatsAuth { user: Some(user.into()), password: Some(password.into()), ..NatsAuth::default() }
}

fn token(token: &str) -> NatsAuth {
    NatsAuth { token: Some(token.into()), ..NatsAuth::default() }
}

fn nkey(key: &KeyPair) -> NatsAuth {
    NatsAuth { nkey: Some(key.seed().unwrap()), ..NatsAuth::default() }
}

fn credentials(file: &Path) -> NatsAuth {
    NatsAuth { credentials: Some(file.to_owned()), ..NatsAuth::default() }
}

const CHECK_AUTH: &str = "check `auth`";

#[tokio::test]
async fn only_the_right_password_is_let_in() {
    let settings = "authorization { user: ann, password: s3same }";
    let Some(server) = own_server(|| PrivateNats::start_with(settings)).await else { return };
    within_deadline(async {
        Way::with(server.url(), password("ann", "s3same")).is_open().await;
        Way::with(server.url(), password("ann", "b4rley")).is_closed(CHECK_AUTH, "b4rley").await;
        Way::with(server.url(), password("bob", "s3same")).is_closed(CHECK_AUTH, "s3same").await;
        Way::with(server.url(), token("s3same")).is_closed(CHECK_AUTH, "s3same").await;
        let url = format!("nats://ann:b4rley@127.0.0.1:{}", server.port());
        Way::with(url, NatsAuth::default()).is_closed(CHECK_AUTH, "b4rley").await;
    })
    .await;
}

#[tokio::test]
async fn only_the_right_token_is_let_in() {
    let settings = "authorization { token: s3same }";
    let Some(server) = own_server(|| PrivateNats::start_with(settings)).await else { return };
    within_deadline(async {
        Way::with(server.url(), token("s3same")).is_open().await;
        Way::with(server.url(), token("b4rley")).is_closed(CHECK_AUTH, "b4rley").await;
        Way::with(server.url(), NatsAuth::default()).is_closed(CHECK_AUTH, "s3same").await;
        let url = format!("nats://b4rley@127.0.0.1:{}", server.port());
        Way::with(url, NatsAuth::default()).is_closed(CHECK_AUTH, "b4rley").await;
    })
    .await;
}

#[tokio::test]
async fn only_the_right_nkey_is_let_in() {
    let (known, other) = (KeyPair::new_user(), KeyPair::new_user());
    let settings = format!("authorization {{ users: [{{ nkey: {} }}] }}", known.public_key());
    let Some(server) = own_server(move || PrivateNats::start_with(&settings)).await else { return };
    within_deadline(async {
        Way::with(server.url(), nkey(&known)).is_open().await;
        Way::with(server.url(), nkey(&other)).is_closed(CHECK_AUTH, &other.seed().unwrap()).await;
        // One letter is missing.
        let seed = known.seed().unwrap();
        let torn = NatsAuth { nkey: Some(seed[1..].to_owned()), ..NatsAuth::default() };
        Way::with(server.url(), torn).is_closed(CHECK_AUTH, &seed[1..]).await;
    })
    .await;
}

/// An operator, an account it has signed, and the settings of a server that believes it.
struct Realm {
    account: KeyPair,
    settings: String,
}

impl Realm {
    fn new() -> Self {
        let (operator, account, system) =
            (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
            "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
        });
        let of_account = token_of(&operator, &account, None, json!({ "type": "account", "limits": limits }));
        // The server keeps JetStream's own traffic there, which must have no streams.
        let of_system = token_of(&operator, &system, None, json!({ "type": "account" }));
        let settings = format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload {{ {}: {of_account}, {}: {of_system} }}\n",
            token_of(&operator, &operator, None, json!({ "type": "operator" })),
            system.public_key(),
            account.public_key(),
            system.public_key(),
        );
        Self { account, settings }
    }

    /// A credentials file of a user of the account.
    fn credentials(&self, folder: &Path, name: &str, expires_at: Option<u64>) -> PathBuf {
        let user = KeyPair::new_user();
        let rights = json!({ "type": "user", "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} });
        write_credentials(folder, name, &token_of(&self.account, &user, expires_at, rights), &user)
    }
}

/// A JWT as NATS writes them: the issuer says something about the subject.
fn token_of(issuer: &KeyPair, subject: &KeyPair, expires_at: Option<u64>, mut about: Value) -> String {
    about["version"] = 2.into();
    let mut claims = json!({
        "jti": "x", "iat": 1, "iss": issuer.public_key(), "sub": subject.public_key(), "name": "x", "nats": about,
    });
    if let Some(expires_at) = expires_at {
        claims["exp"] = expires_at.into();
    }
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(&claims));
    let signature = URL_SAFE_NO_PAD.encode(issuer.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

fn write_credentials(folder: &Path, name: &str, token: &str, key: &KeyPair) -> PathBuf {
    let file = folder.join(name);
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        key.seed().unwrap()
    );
    fs::write(&file, text).unwrap();
    file
}

/// The seed in a credentials file.
fn seed_in(file: &Path) -> String {
    fs::read_to_string(file).unwrap().lines().find(|line| line.starts_with("SU")).unwrap().to_owned()
}

#[tokio::test]
async fn only_the_right_credentials_are_let_in() {
    let realm = Realm::new();
    let settings = realm.settings.clone();
    let Some(server) = own_server(move || PrivateNats::start_with(&settings)).await else { return };
    let folder = tempfile::tempdir().unwrap();
    within_deadline(async {
        let good = realm.credentials(folder.path(), "good.creds", None);
        Way::with(server.url(), credentials(&good)).is_open().await;
        let expired = realm.credentials(folder.path(), "expired.creds", Some(1000));
        let foreign = Realm::new().credentials(folder.path(), "foreign.creds", None);
        // The token of a user with the key of another one.
        let text = fs::read_to_string(&good).unwrap();
        let stolen = write_credentials(
            folder.path(),
            "stolen.creds",
            text.lines().nth(1).unwrap(),
            &KeyPair::new_user(),
        );
        for file in [&expired, &foreign, &stolen] {
            Way::with(server.url(), credentials(file)).is_closed(CHECK_AUTH, &seed_in(file)).await;
        }
        Way::with(server.url(), NatsAuth::default()).is_closed(CHECK_AUTH, "no secret").await;
        let torn = folder.path().join("torn.creds");
        fs::write(&torn, text.replace("-----BEGIN USER", "")).unwrap();
        Way::with(server.url(), credentials(&torn)).is_closed("torn.creds", &seed_in(&torn)).await;
    })
    .await;
}

#[tokio::test]
async fn where_clients_need_a_certificate_only_one_of_the_right_authority_is_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let files = Certificates::create(folder.path()).unwrap();
    let settings = format!(
        "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        files.certificate, files.key, files.authority
    );
    let Some(server) = own_server(move || PrivateNats::start_with(&settings)).await else { return };
    let way = |tls: NatsTls| {
        let tls = NatsTls { ca: Some(files.authority.clone()), ..tls };
        Way { tls, ..Way::with(format!("tls://127.0.0.1:{}", server.port()), NatsAuth::default()) }
    };
    let own = |files: &Certificates| NatsTls {
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
        ..NatsTls::default()
    };
    within_deadline(async {
        way(own(&files)).is_open().await;
        way(NatsTls::default()).is_closed("check `tls`", "no secret").await;
        let other = tempfile::tempdir_in(folder.path()).unwrap();
        way(own(&Certificates::create(other.path()).unwrap())).is_closed("check `tls`", "no secret").await;
    })
    .await;
}

//! Signatures of webhooks: checked over the bytes as they came, before anything else looks at them.

use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::config::{Encoding, Scheme, Secret, Verify};

/// The request did not prove where it comes from. It says no more on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotProven;

/// Checks a request. `now` is in seconds since 1970.
///
/// Refuses when in doubt: a header that is missing, empty or there twice, an unknown version, a time too far away.
pub(crate) fn verify(verify: &Verify, headers: &HeaderMap, body: &[u8], now: u64) -> Result<(), NotProven> {
    let good = match &verify.scheme {
        Scheme::StandardWebhooks => standard_webhooks(verify, headers, body, now)?,
        Scheme::Stripe => stripe(verify, headers, body, now)?,
        Scheme::Github => {
            let given =
                hex(single(headers, "x-hub-signature-256")?.strip_prefix("sha256=").ok_or(NotProven)?)?;
            any(verify, &[given], |secret| mac(secret.expose().as_bytes(), &[body]))
        }
        Scheme::Hmac { header, prefix, encoding } => {
            let given = single(headers, header)?.strip_prefix(prefix.as_str()).ok_or(NotProven)?;
            let given = match encoding {
                Encoding::Hex => hex(given)?,
                Encoding::Base64 => STANDARD.decode(given).map_err(|_| NotProven)?,
            };
            any(verify, &[given], |secret| mac(secret.expose().as_bytes(), &[body]))
        }
    };
    if good { Ok(()) } else { Err(NotProven) }
}

/// Whether the headers of a signature are there at all; whether it holds is only known once the body has come.
pub(crate) fn is_there(verify: &Verify, headers: &HeaderMap) -> bool {
    let needed: &[&str] = match &verify.scheme {
        Scheme::StandardWebhooks => &["webhook-id", "webhook-timestamp", "webhook-signature"],
        Scheme::Stripe => &["stripe-signature"],
        Scheme::Github => &["x-hub-signature-256"],
        Scheme::Hmac { header, .. } => &[header],
    };
    needed.iter().all(|name| single(headers, name).is_ok())
}

/// What can be said about a secret before the first request: whether it can be read at all.
pub(crate) fn check(verify: &Verify) -> Result<(), String> {
    let readable = |secret: &Secret| verify.scheme != Scheme::StandardWebhooks || key(secret).is_some();
    if verify.secrets.iter().all(readable) {
        return Ok(());
    }
    Err("a secret of `verify` begins with `whsec_` and goes on with something that is not base64".to_owned())
}

/// The value of a `webhook-signature` for an outgoing request; `None` when the secret cannot be read.
pub(crate) fn standard_webhook(secret: &Secret, id: &str, seconds: u64, body: &[u8]) -> Option<String> {
    let signature = mac(&key(secret)?, &[id.as_bytes(), b".", seconds.to_string().as_bytes(), b".", body]);
    Some(format!("v1,{}", STANDARD.encode(signature)))
}

fn standard_webhooks(verify: &Verify, headers: &HeaderMap, body: &[u8], now: u64) -> Result<bool, NotProven> {
    let (id, time) = (single(headers, "webhook-id")?, single(headers, "webhook-timestamp")?);
    // A dot would let a part of the id pass as the time.
    if id.contains('.') {
        return Err(NotProven);
    }
    near(time, now, verify.tolerance)?;
    let given: Vec<Vec<u8>> = single(headers, "webhook-signature")?
        .split(' ')
        .filter_map(|signature| signature.strip_prefix("v1,"))
        .filter_map(|signature| STANDARD.decode(signature).ok())
        .collect();
    Ok(any(verify, &given, |secret| {
        let key = key(secret).unwrap_or_default();
        mac(&key, &[id.as_bytes(), b".", time.as_bytes(), b".", body])
    }))
}

fn stripe(verify: &Verify, headers: &HeaderMap, body: &[u8], now: u64) -> Result<bool, NotProven> {
    let header = single(headers, "stripe-signature")?;
    let parts = || header.split(',').filter_map(|part| part.trim().split_once('='));
    let mut times = parts().filter(|(name, _)| *name == "t").map(|(_, value)| value);
    let time = times.next().ok_or(NotProven)?;
    if times.next().is_some() {
        return Err(NotProven);
    }
    near(time, now, verify.tolerance)?;
    let given: Vec<Vec<u8>> =
        parts().filter(|(name, _)| *name == "v1").filter_map(|(_, value)| hex(value).ok()).collect();
    Ok(any(verify, &given, |secret| mac(secret.expose().as_bytes(), &[time.as_bytes(), b".", body])))
}

/// Whether one of the given signatures is one of ours. Looks at all of them, whichever is good.
fn any(verify: &Verify, given: &[Vec<u8>], ours: impl Fn(&Secret) -> Vec<u8>) -> bool {
    let mut good = false;
    for secret in verify.secrets.iter().filter(|secret| !secret.is_empty()) {
        let expected = ours(secret);
        for signature in given {
            good |= bool::from(expected.as_slice().ct_eq(signature.as_slice()));
        }
    }
    good
}

/// The one value of a header, which is text and not empty.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, NotProven> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(NotProven)?.to_str().map_err(|_| NotProven)?;
    if values.next().is_some() || value.is_empty() { Err(NotProven) } else { Ok(value) }
}

/// Whole seconds, near enough to now on either side.
fn near(text: &str, now: u64, tolerance: Duration) -> Result<(), NotProven> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NotProven);
    }
    let time: u64 = text.parse().map_err(|_| NotProven)?;
    if time.abs_diff(now) <= tolerance.as_secs() { Ok(()) } else { Err(NotProven) }
}

/// The key of a Standard Webhooks secret: base64 after `whsec_`, else the text itself.
fn key(secret: &Secret) -> Option<Vec<u8>> {
    match secret.expose().strip_prefix("whsec_") {
        Some(encoded) => STANDARD.decode(encoded).or_else(|_| STANDARD_NO_PAD.decode(encoded)).ok(),
        None => Some(secret.expose().as_bytes().to_vec()),
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn hex(text: &str) -> Result<Vec<u8>, NotProven> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(NotProven);
    }
    let pair = |place: usize| u8::from_str_radix(&text[place..place + 2], 16).map_err(|_| NotProven);
    (0..text.len()).step_by(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const NOW: u64 = 1_614_265_330;

    fn rules(scheme: Scheme, secrets: &[&str]) -> Verify {
        let secrets = secrets.iter().map(|secret| Secret::new(*secret)).collect();
        Verify { scheme, secrets, tolerance: Duration::from_secs(300) }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    fn standard(id: &str, time: &str, signature: &str) -> HeaderMap {
        headers(&[("webhook-id", id), ("webhook-timestamp", time), ("webhook-signature", signature)])
    }

    /// With the vector of the specification and another implementation as the oracle.
    #[test]
    fn standard_webhooks_over_the_raw_bytes() {
        let rules = rules(Scheme::StandardWebhooks, &[SECRET]);
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        let time = NOW.to_string();
        assert_eq!(verify(&rules, &standard(ID, &time, good), BODY, NOW), Ok(()));
        assert_eq!(standard_webhook(&rules.secrets[0], ID, NOW, BODY).as_deref(), Some(good));
        let oracle = standardwebhooks::Webhook::new(SECRET).unwrap();
        assert_eq!(oracle.sign(ID, NOW as i64, BODY).unwrap(), good);
        let written_again = br#"{"test":2432232314}"#;
        assert_eq!(verify(&rules, &standard(ID, &time, good), written_again, NOW), Err(NotProven));
        assert_eq!(verify(&rules, &standard("other", &time, good), BODY, NOW), Err(NotProven));
    }

    #[test]
    fn the_time_may_be_off_by_the_tolerance_both_ways() {
        let rules = rules(Scheme::StandardWebhooks, &[SECRET]);
        let stripe_rules = Verify { scheme: Scheme::Stripe, ..rules.clone() };
        let signed = |time: &str| {
            let signature =
                mac(&key(&rules.secrets[0]).unwrap(), &[ID.as_bytes(), b".", time.as_bytes(), b".", BODY]);
            standard(ID, time, &format!("v1,{}", STANDARD.encode(signature)))
        };
        let stripe = |time: &str| {
            let signature = mac(SECRET.as_bytes(), &[time.as_bytes(), b".", BODY]);
            let signature: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
            headers(&[("stripe-signature", &format!("t={time},v1={signature}"))])
        };
        for (offset, expected) in
            [(-301, Err(NotProven)), (-299, Ok(())), (0, Ok(())), (299, Ok(())), (301, Err(NotProven))]
        {
            let time = (NOW as i64 + offset).to_string();
            assert_eq!(verify(&rules, &signed(&time), BODY, NOW), expected, "{offset}");
            assert_eq!(verify(&stripe_rules, &stripe(&time), BODY, NOW), expected, "stripe {offset}");
        }
        for time in
            ["", "-1614265330", "+1614265330", "1614265330.0", "99999999999999999999999", "x", " 1614265330"]
        {
            assert_eq!(verify(&rules, &signed(time), BODY, NOW), Err(NotProven), "{time:?}");
            assert_eq!(verify(&stripe_rules, &stripe(time), BODY, NOW), Err(NotProven), "stripe {time:?}");
        }
    }

    #[test]
    fn any_of_several_secrets_and_signatures_is_good() {
        let (old, new) = (Secret::new("old-secret"), Secret::new("new-secret"));
        let time = NOW.to_string();
        let of = |secret: &Secret| standard_webhook(secret, ID, NOW, BODY).unwrap();
        let both = rules(Scheme::StandardWebhooks, &["new-secret", "old-secret"]);
        let only_new = rules(Scheme::StandardWebhooks, &["new-secret"]);
        assert_eq!(verify(&both, &standard(ID, &time, &of(&old)), BODY, NOW), Ok(()));
        assert_eq!(verify(&both, &standard(ID, &time, &of(&new)), BODY, NOW), Ok(()));
        assert_eq!(verify(&only_new, &standard(ID, &time, &of(&old)), BODY, NOW), Err(NotProven));
        let two = format!("{} {}", of(&old), of(&new));
        assert_eq!(verify(&only_new, &standard(ID, &time, &two), BODY, NOW), Ok(()));
    }

    #[test]
    fn doubt_is_refused() {
        let rules_of = |secrets: &[&str]| rules(Scheme::StandardWebhooks, secrets);
        let good = standard_webhook(&Secret::new(SECRET), ID, NOW, BODY).unwrap();
        let time = NOW.to_string();
        let refused = |rules: &Verify, headers: &HeaderMap| {
            assert_eq!(verify(rules, headers, BODY, NOW), Err(NotProven), "{headers:?}");
        };
        let known = rules_of(&[SECRET]);
        assert!(is_there(&known, &standard(ID, &time, "v1,wrong")));
        for missing in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut without = standard(ID, &time, &good);
            without.remove(missing);
            refused(&known, &without);
            assert!(!is_there(&known, &without), "{missing}");
            let mut twice = standard(ID, &time, &good);
            let value = twice[missing].clone();
            twice.append(HeaderName::from_static(missing), value);
            refused(&known, &twice);
            let mut empty = standard(ID, &time, &good);
            empty.insert(HeaderName::from_static(missing), HeaderValue::from_static(""));
            refused(&known, &empty);
        }
        refused(&known, &standard(ID, &time, &good.replace("v1,", "v2,")));
        refused(&known, &standard(ID, &time, &good.replace("v1,", "")));
        refused(&known, &standard(ID, &time, "v1,"));
        refused(&known, &standard(ID, &time, "v1,!!!!"));
        let dotted = standard_webhook(&Secret::new(SECRET), "a.b", NOW, BODY).unwrap();
        refused(&known, &standard("a.b", &time, &dotted));
        let empty = standard_webhook(&Secret::new(""), ID, NOW, BODY).unwrap();
        refused(&rules_of(&[""]), &standard(ID, &time, &empty));
        refused(&rules_of(&[]), &standard(ID, &time, &good));
    }

    #[test]
    fn github_stripe_and_plain_signatures_are_checked() {
        let signature: String = mac(b"It's a Secret to Everybody", &[b"Hello, World!"])
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            signature, "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
            "the vector of GitHub"
        );
        let github = rules(Scheme::Github, &["It's a Secret to Everybody"]);
        let good = headers(&[("x-hub-signature-256", &format!("sha256={signature}"))]);
        assert_eq!(verify(&github, &good, b"Hello, World!", NOW), Ok(()));
        assert_eq!(verify(&github, &good, b"Hello, World?", NOW), Err(NotProven));
        for wrong in
            [signature.clone(), format!("sha1={signature}"), "sha256=".to_owned(), "sha256=zz".to_owned()]
        {
            assert_eq!(
                verify(&github, &headers(&[("x-hub-signature-256", &wrong)]), b"Hello, World!", NOW),
                Err(NotProven)
            );
        }
        for encoding in [Encoding::Hex, Encoding::Base64] {
            let scheme = Scheme::Hmac { header: "X-Sig".to_owned(), prefix: "sig=".to_owned(), encoding };
            let bytes = mac(b"k", &[BODY]);
            let text = match encoding {
                Encoding::Hex => bytes.iter().map(|byte| format!("{byte:02X}")).collect(),
                Encoding::Base64 => STANDARD.encode(bytes),
            };
            let plain = rules(scheme, &["k"]);
            assert_eq!(verify(&plain, &headers(&[("x-sig", &format!("sig={text}"))]), BODY, NOW), Ok(()));
            assert_eq!(verify(&plain, &headers(&[("x-sig", &text)]), BODY, NOW), Err(NotProven));
        }
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_found_before_the_first_request() {
        assert!(check(&rules(Scheme::StandardWebhooks, &["whsec_***"])).is_err());
        assert!(check(&rules(Scheme::StandardWebhooks, &[SECRET, "plain"])).is_ok());
        assert!(check(&rules(Scheme::Github, &["whsec_***"])).is_ok());
    }
}

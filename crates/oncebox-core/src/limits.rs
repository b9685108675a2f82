//! What a message may look like; checked before anything is stored.

use crate::error::Error;
use crate::message::Message;

/// The limits of a message. Everything but the payload size is fixed, because it is part of the stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes a payload may have; 16 MiB unless set.
    pub payload_bytes: usize,
}

/// The most bytes of a message id.
pub const LONGEST_ID: usize = 512;
/// The most bytes of a kind.
pub const LONGEST_KIND: usize = 255;
/// The most bytes of a key.
pub const LONGEST_KEY: usize = 512;
/// The most bytes of a scope.
pub const LONGEST_SCOPE: usize = 255;
/// The most bytes of all headers together: their names and values, and 8 for each of them.
pub const LONGEST_HEADERS: usize = 64 * 1024;

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes: 16 * 1024 * 1024 }
    }
}

impl Limits {
    /// Refuses a message that breaks a limit, naming the field, the size and the limit.
    pub fn check(&self, message: &Message) -> Result<(), Error> {
        text("id", &message.id, 1, LONGEST_ID)?;
        text("kind", &message.kind, 1, LONGEST_KIND)?;
        text("scope", &message.scope, 0, LONGEST_SCOPE)?;
        text("sink", &message.sink, 0, LONGEST_SCOPE)?;
        if let Some(key) = &message.key {
            text("key", key, 1, LONGEST_KEY)?;
        }
        let headers = message.headers.size();
        if headers > LONGEST_HEADERS {
            return Err(Error::invalid(format!(
                "headers of message `{}` have {headers} bytes; the limit is {LONGEST_HEADERS}",
                message.id.escape_debug()
            )));
        }
        if message.payload.len() > self.payload_bytes {
            return Err(Error::invalid(format!(
                "payload of message `{}` has {} bytes; the limit is {} (raise it with `Inbox::limits`, \
                 or store the body elsewhere and send its address)",
                message.id.escape_debug(),
                message.payload.len(),
                self.payload_bytes
            )));
        }
        Ok(())
    }
}

fn text(field: &str, value: &str, least: usize, most: usize) -> Result<(), Error> {
    if value.len() < least {
        return Err(Error::invalid(format!("the {field} of a message is empty; give it 1 to {most} bytes")));
    }
    if value.len() > most {
        return Err(Error::invalid(format!(
            "the {field} of a message has {} bytes; the limit is {most} (use a hash of it, or shorten it)",
            value.len()
        )));
    }
    if value.contains('\0') {
        return Err(Error::invalid(format!("the {field} of a message contains a NUL byte; encode it first")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_refused_with_the_name_of_the_field() {
        let limits = Limits { payload_bytes: 10 };
        let ok = || Message::new("kind", "body").id("id");
        let empty_headers = |count: usize| (0..count).fold(ok(), |message, _| message.header("", ""));
        limits.check(&empty_headers(LONGEST_HEADERS / 8)).unwrap();
        limits.check(&ok()).unwrap();
        limits.check(&ok().id("x".repeat(512)).key("k".repeat(512))).unwrap();
        for (message, word) in [
            (ok().id(""), "id"),
            (ok().id("x".repeat(513)), "id"),
            (ok().id("a\0b"), "id"),
            (ok().key(""), "key"),
            (ok().key("k".repeat(513)), "key"),
            (Message::new("", "x"), "kind"),
            (Message::new("k".repeat(256), "x"), "kind"),
            (ok().scope("s".repeat(256)), "scope"),
            (ok().header("h", vec![0; 70_000]), "headers"),
            (empty_headers(LONGEST_HEADERS / 8 + 1), "headers"),
            (Message::new("kind", vec![0; 11]), "payload"),
        ] {
            let error = limits.check(&message).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

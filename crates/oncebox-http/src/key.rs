//! The header `Idempotency-Key`: an item of RFC 8941 whose value is a string.

use http::HeaderMap;

/// The most bytes of a key.
pub(crate) const LONGEST: usize = 255;

const NAME: &str = "idempotency-key";

/// Which spellings of a key are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// A quoted string, as the draft says.
    Quoted,
    /// Also without quotes, as many clients send it.
    QuotedOrBare,
}

/// The key of a request; what is wrong with it, when it is not one.
pub(crate) fn read(headers: &HeaderMap, spelling: Spelling) -> Result<Option<String>, String> {
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the request has more than one `Idempotency-Key`; send one".to_owned());
    }
    let text = value.as_bytes().trim_ascii();
    let key = if text.first() == Some(&b'"') {
        quoted(text)
    } else if spelling == Spelling::QuotedOrBare {
        bare(text)
    } else {
        None
    };
    let key = key.ok_or(
        "`Idempotency-Key` is not a string of RFC 8941; send printable ASCII in double quotes, for example \
         \"8e03978e-40d5-43e8-bc93-6894a57f9324\"",
    )?;
    if key.is_empty() {
        return Err("`Idempotency-Key` is empty; send 1 to 255 characters, best a random UUID".to_owned());
    }
    if key.len() > LONGEST {
        return Err(format!("`Idempotency-Key` has {} bytes; send at most {LONGEST}", key.len()));
    }
    Ok(Some(key))
}

/// A string and its parameters, which mean nothing here and are passed over as the RFC asks.
fn quoted(text: &[u8]) -> Option<String> {
    let (key, mut rest) = string(text)?;
    while let Some(after) = rest.strip_prefix(b";") {
        rest = parameter(after.trim_ascii_start())?;
    }
    rest.is_empty().then_some(key)
}

fn string(text: &[u8]) -> Option<(String, &[u8])> {
    let mut key = String::new();
    let mut bytes = text.strip_prefix(b"\"")?.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((key, &text[at + 2..])),
            b'\\' => match bytes.next()?.1 {
                escaped @ (b'"' | b'\\') => key.push(char::from(*escaped)),
                _ => return None,
            },
            b' '..=b'~' => key.push(char::from(*byte)),
            _ => return None,
        }
    }
    None
}

/// Passes over `name` or `name=value`.
fn parameter(text: &[u8]) -> Option<&[u8]> {
    text.first().filter(|byte| byte.is_ascii_lowercase() || **byte == b'*')?;
    let rest =
        after(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte));
    let Some(value) = rest.strip_prefix(b"=") else { return Some(rest) };
    match value.first()? {
        b'"' => string(value).map(|(_, rest)| rest),
        b'?' => matches!(value.get(1)?, b'0' | b'1').then(|| &value[2..]),
        b':' => {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
            after(&value[1..], is_base64).strip_prefix(b":")
        }
        b'-' | b'0'..=b'9' => {
            let digits = value.strip_prefix(b"-").unwrap_or(value);
            digits.first().filter(|byte| byte.is_ascii_digit())?;
            Some(after(digits, |byte| byte.is_ascii_digit() || byte == b'.'))
        }
        b'A'..=b'Z' | b'a'..=b'z' | b'*' => {
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
            Some(after(value, is_token))
        }
        _ => None,
    }
}

fn after(text: &[u8], belongs: impl Fn(u8) -> bool) -> &[u8] {
    let end = text.iter().position(|byte| !belongs(*byte)).unwrap_or(text.len());
    &text[end..]
}

/// What is neither a list nor has parameters.
fn bare(text: &[u8]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\,;".contains(byte);
    (text.iter().all(is_plain)).then(|| text.iter().map(|byte| char::from(*byte)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read_one(value: &[u8], spelling: Spelling) -> Result<Option<String>, String> {
        let mut headers = HeaderMap::new();
        headers.insert(NAME, HeaderValue::from_bytes(value).unwrap());
        read(&headers, spelling)
    }

    #[test]
    fn strings_of_the_rfc_are_keys() {
        for (value, key) in [
            (r#""a""#, "a"),
            (r#"  "a b"  "#, "a b"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""a,b;c""#, "a,b;c"),
            (r#""a";x"#, "a"),
            (r#""a"; x=1;y=-1.5;z="q;\"";t=tok/en:1;b=?0;c=:YQ==:"#, "a"),
        ] {
            assert_eq!(read_one(value.as_bytes(), Spelling::Quoted), Ok(Some(key.to_owned())), "{value}");
        }
        let longest = format!("\"{}\"", "k".repeat(LONGEST));
        assert!(read_one(longest.as_bytes(), Spelling::Quoted).is_ok());
    }

    #[test]
    fn whatever_else_is_refused() {
        let too_long = format!("\"{}\"", "k".repeat(LONGEST + 1)).into_bytes();
        let huge = format!("\"{}\"", "k".repeat(1 << 20)).into_bytes();
        let wrong: [&[u8]; 26] = [
            b"",
            b"\"\"",
            b"abc",
            b"'abc'",
            b"\"abc",
            b"abc\"",
            b"\"a\"b",
            b"\"a\" b",
            b"\"a\", \"b\"",
            b"\"a\\n\"",
            b"\"a\\",
            b"\"a\tb\"",
            b"\"caf\xc3\xa9\"",
            b"\"\xff\"",
            b"\"a\";",
            b"\"a\";X",
            b"\"a\";x=",
            b"\"a\";x=?2",
            b"\"a\";x=:%:",
            b"\"a\";x=-",
            b"\"a\";x=\"",
            b"\"a\";x=@",
            b"1",
            b"?1",
            &too_long,
            &huge,
        ];
        for value in wrong {
            assert!(read_one(value, Spelling::Quoted).is_err(), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic() {
        // Mostly what means something in a header, so that every branch is reached.
        let alphabet = b"\"\\;:=?*-.,01aZ%~\t \xff";
        let seed = oncebox_core::clock::Seed::fixed(7);
        for _ in 0..200_000 {
            let length = seed.next() % 12;
            let pick = || alphabet[usize::try_from(seed.next() % alphabet.len() as u64).unwrap()];
            let mut value: Vec<u8> = (0..length).map(|_| pick()).collect();
            if seed.next().is_multiple_of(2) {
                value.splice(0..0, *b"\"k\";");
            }
            for spelling in [Spelling::Quoted, Spelling::QuotedOrBare] {
                if let Ok(Some(key)) = read_one(&value, spelling) {
                    assert!(
                        !key.is_empty() && key.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                        "{key}"
                    );
                }
            }
        }
    }

    #[test]
    fn bare_keys_are_read_where_they_are_allowed() {
        let same = Ok(Some("8e03978e-40d5".to_owned()));
        assert_eq!(read_one(b"8e03978e-40d5", Spelling::QuotedOrBare), same);
        assert_eq!(read_one(b"\"8e03978e-40d5\"", Spelling::QuotedOrBare), same);
        for value in [&b"a b"[..], b"a,b", b"a;b", b"a\"b", b"caf\xc3\xa9", b""] {
            assert!(read_one(value, Spelling::QuotedOrBare).is_err(), "{}", value.escape_ascii());
        }
    }

    #[test]
    fn two_headers_are_refused_even_when_they_are_the_same() {
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers, Spelling::Quoted), Ok(None));
        headers.append(NAME, HeaderValue::from_static("\"a\""));
        headers.append(NAME, HeaderValue::from_static("\"a\""));
        assert!(read(&headers, Spelling::Quoted).unwrap_err().contains("more than one"));
    }
}

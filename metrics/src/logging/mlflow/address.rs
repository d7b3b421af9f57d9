//! The address of an MLflow server, apart from the name and the password that it may contain.

use anyhow::{Result, ensure};

/// Where the server is, and what it wants to know from a client.
pub(super) struct Address {
    /// `http://host:port`
    uri: String,
    /// Value of the header `Authorization`.
    credentials: Option<String>,
    /// What must not be printed: the password as it was typed, as it is, and as it travels.
    secrets: Vec<String>,
}

impl Address {
    /// Splits `http://name:password@host:port`.
    ///
    /// # Errors
    /// If Kiln cannot send metrics there. The text has neither the name nor the password.
    pub(super) fn parse(uri: &str) -> Result<Self> {
        let shown = without_user(uri);
        let instead = "this run is not sent to MLflow, metrics.jsonl has its metrics";
        let Some(rest) = uri.strip_prefix("http://") else {
            anyhow::bail!(
                "MLFLOW_TRACKING_URI is {shown:?}, but Kiln sends metrics to http:// addresses only, such as \
                 http://127.0.0.1:5000; {instead}"
            );
        };

        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let is_plain = !rest.contains(['?', '#']) && rest.rfind('@').is_none_or(|at| at < authority.len());
        ensure!(
            is_plain,
            "MLFLOW_TRACKING_URI for {shown:?} has /, ?, # or @ where only a name and a password can be; write these \
             characters of a password as %2F, %3F, %23 and %40; {instead}"
        );
        let uri = shown.trim_end_matches('/').to_owned();
        let Some((user, _)) = authority.rsplit_once('@') else {
            return Ok(Self { uri, credentials: None, secrets: Vec::new() });
        };

        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let plain = [percent_decoded(name), b":".to_vec(), percent_decoded(password)].concat();
        let encoded = base64(&plain);
        let decoded = String::from_utf8_lossy(&percent_decoded(password)).into_owned();
        let secrets = [user.to_owned(), encoded.clone(), password.to_owned(), decoded];
        let secrets = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        Ok(Self { uri, credentials: Some(format!("Basic {encoded}")), secrets })
    }

    /// The address without a name and a password.
    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    /// The value of `Authorization`, if the address has a name or a password.
    pub(super) fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }

    /// Returns whether `uri`, as a run folder has it, is this server.
    pub(super) fn is_at(&self, uri: &str) -> bool {
        without_user(uri).trim_end_matches('/') == self.uri
    }

    /// Removes the password from a text of the server, which may repeat what it was sent.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

/// Returns an address without all that may be a name, a password or a token.
fn without_user(uri: &str) -> String {
    let (scheme, rest) = uri.split_once("://").map_or(("", uri), |(scheme, rest)| (scheme, rest));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Decodes `%2F` and its like; other text stays.
fn percent_decoded(text: &str) -> Vec<u8> {
    let (bytes, mut decoded) = (text.as_bytes(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match code.filter(|_| bytes[at] == b'%').and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => (decoded.push(byte), at += 3),
            None => (decoded.push(bytes[at]), at += 1),
        };
    }
    decoded
}

/// Encodes bytes as RFC 4648 says.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let number = (0..3).fold(0_usize, |number, i| (number << 8) | usize::from(group.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = char::from(DIGITS[(number >> (18 - 6 * i)) & 63]);
            text.push(if i <= group.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_the_rfc_does() {
        let examples =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("~~?", "fn4/")];
        for (bytes, text) in examples {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_name_and_a_password_are_split_off() {
        let address = Address::parse("http://me:p%2Fw%40@host:5000/").expect("an address");
        assert_eq!(address.uri(), "http://host:5000");
        assert_eq!(address.credentials(), Some(format!("Basic {}", base64(b"me:p/w@")).as_str()));
        assert_eq!(address.without_secrets("no p/w@ or p%2Fw%40 here"), "no *** or *** here");
        assert!(address.is_at("http://other:secret@host:5000/") && !address.is_at("http://host:5001"));
        assert_eq!(Address::parse("http://host/prefix").expect("an address").credentials(), None);
        let strange = Address::parse("http://me:1%zz%4é@host").expect("an address");
        assert_eq!(strange.credentials(), Some(format!("Basic {}", base64("me:1%zz%4é".as_bytes())).as_str()));
    }

    #[test]
    fn no_refusal_repeats_a_password() {
        let hostile = [
            "https://me:hunter2@host",
            "http://me:hunter2/@host",
            "http://me:hunter2#@host",
            "http://host/?token=hunter2",
            "me:hunter2@host",
            "databricks://me:hunter2@host?token=hunter2",
        ];
        for uri in hostile {
            let error = Address::parse(uri).err().expect("refused").to_string();
            assert!(!error.contains("hunter2") && error.contains("host"), "{error}");
        }
    }
}

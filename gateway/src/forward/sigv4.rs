//! AWS's Signature Version 4: the request as it is sent, signed with a secret that stays here. Pure: a request and a time in,
//! fields out ("Signing AWS API requests", IAM User Guide, section "Create a signed request").
//!
//! What the signature binds is what policy judged: method, host, path, query and the caller's `x-amz-*` fields.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use ring::hmac;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;

use crate::{mask::Patterns, url::Scheme};

pub(crate) const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The one service whose path is encoded once, and which wants the body's digest in a field.
const S3: &str = "s3";

/// Everything but the unreserved characters of RFC 3986.
const STRICT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const PATH: AsciiSet = STRICT.remove(b'/');

/// A key of an account, for one region and service.
#[derive(Debug)]
pub(crate) struct Signer {
    id: String,
    secret: hmac::Key,
    token: Option<HeaderValue>,
    region: String,
    service: String,
    hide: Arc<Patterns>,
}

/// What a signature says of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payload(String);

impl Payload {
    /// The digest of a whole body.
    pub(crate) fn of(body: &[u8]) -> Self {
        Self(hex(&Sha256::digest(body)))
    }

    /// A body that is not signed: TLS has to protect it.
    pub(crate) fn unsigned() -> Self {
        Self("UNSIGNED-PAYLOAD".to_owned())
    }

    /// What the caller says of it; `None` if that is nothing.
    ///
    /// # Errors
    /// What it says can't be kept.
    pub(crate) fn told(field: Option<&[u8]>, scheme: Scheme) -> Result<Option<Self>, String> {
        let Some(field) = field else { return Ok(None) };
        let text = std::str::from_utf8(field).unwrap_or_default();
        let digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text {
            _ if digest => Ok(Some(Self(text.to_ascii_lowercase()))),
            "UNSIGNED-PAYLOAD" | "STREAMING-UNSIGNED-PAYLOAD-TRAILER" if scheme == Scheme::Https => {
                Ok(Some(Self(text.to_owned())))
            }
            "UNSIGNED-PAYLOAD" => Ok(None),
            _ => {
                Err("`x-amz-content-sha256` has to be the body's SHA-256: chunks that the caller signed are \
                      signed with no key of this tool's"
                    .to_owned())
            }
        }
    }
}

impl Signer {
    /// Of `ACCESS_KEY_ID:SECRET` or `ACCESS_KEY_ID:SECRET:SESSION_TOKEN`.
    ///
    /// # Errors
    /// It is neither, in words that show nothing of it.
    pub(crate) fn new(value: &str, region: &str, service: &str) -> Result<Self, String> {
        let mut parts = value.splitn(3, ':');
        let (Some(id), Some(secret), token) = (parts.next(), parts.next(), parts.next()) else {
            return Err("it is not `ACCESS_KEY_ID:SECRET`".to_owned());
        };
        if id.is_empty() || secret.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err("it is not `ACCESS_KEY_ID:SECRET`".to_owned());
        }
        let mut hide = Arc::new(Patterns::of(secret));
        if let Some(token) = token {
            hide = Arc::new(Patterns::joined(&hide, &[&Arc::new(Patterns::of(token))]));
        }
        let token = token.map(HeaderValue::from_str).transpose();
        let mut token =
            token.map_err(|_| "its session token holds characters that no field can".to_owned())?;
        if let Some(token) = &mut token {
            token.set_sensitive(true);
        }
        let secret = zeroize::Zeroizing::new(format!("AWS4{secret}"));
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let (id, region, service) = (id.to_owned(), region.to_owned(), service.to_owned());
        Ok(Self { id, secret, token, region, service, hide })
    }

    /// What to hide in answers: the secret and the token; the key's name is none.
    pub(crate) fn patterns(&self) -> Arc<Patterns> {
        Arc::clone(&self.hide)
    }

    /// Whether the service takes requests whose body isn't signed, which only TLS makes safe.
    pub(crate) fn may_leave_out_body(&self, scheme: Scheme) -> bool {
        self.service == S3 && scheme == Scheme::Https
    }

    /// Puts date, token and signature into the fields of a request that is otherwise ready.
    ///
    /// # Errors
    /// It can't be signed: a fault inside Strait.
    pub(crate) fn sign(
        &self,
        method: &Method,
        uri: &Uri,
        fields: &mut HeaderMap,
        payload: &Payload,
        now: OffsetDateTime,
    ) -> Result<(), String> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
        let (day, at) = spelled(now);
        for name in [&AUTHORIZATION, &SECURITY_TOKEN, &CONTENT_SHA256] {
            fields.remove(name);
        }
        fields.insert(DATE, value(&at)?);
        if let Some(token) = &self.token {
            fields.insert(SECURITY_TOKEN, token.clone());
        }
        if self.service == S3 || payload.0.len() != 64 {
            fields.insert(CONTENT_SHA256, value(&payload.0)?);
        }
        let authority = uri.authority().ok_or("the URL has no host")?.as_str();
        let (signed, canonical) = self.canonical(method, uri, authority, fields, payload);
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        let text = format!("{ALGORITHM}\n{at}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let key = [&self.region, &self.service, "aws4_request"]
            .iter()
            .fold(hmac::sign(&self.secret, day.as_bytes()), |key, part| {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), part.as_bytes())
            });
        let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_ref()), text.as_bytes());
        let id = &self.id;
        let signature = hex(signature.as_ref());
        fields.insert(
            AUTHORIZATION,
            value(&format!(
                "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={signed}, Signature={signature}"
            ))?,
        );
        Ok(())
    }

    /// The names of the fields that are signed, and the request in its one spelling.
    fn canonical(
        &self,
        method: &Method,
        uri: &Uri,
        authority: &str,
        fields: &HeaderMap,
        payload: &Payload,
    ) -> (String, String) {
        let mut signed = BTreeMap::from([(HOST.as_str(), authority.to_owned())]);
        let theirs = |name: &HeaderName| *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
        for name in fields.keys().filter(|name| theirs(name)) {
            let values = fields.get_all(name).iter().map(|value| trimmed(value.as_bytes()));
            signed.insert(name.as_str(), values.collect::<Vec<_>>().join(","));
        }
        let names = signed.keys().copied().collect::<Vec<_>>().join(";");
        let mut lines = String::new();
        for (name, value) in &signed {
            // Writing to a string can't fail.
            let _ = writeln!(lines, "{name}:{value}");
        }
        let path = match self.service.as_str() {
            S3 => encoded(&percent_decode(uri.path().as_bytes()).collect::<Vec<_>>(), &PATH),
            _ => encoded(uri.path().as_bytes(), &PATH),
        };
        let query = query(uri.query().unwrap_or_default());
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{}", payload.0);
        (names, canonical)
    }
}

/// Sorted pairs, each part encoded once, whatever was encoded before.
fn query(query: &str) -> String {
    let part = |text: &str| encoded(&percent_decode(text.as_bytes()).collect::<Vec<_>>(), &STRICT);
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (part(key), part(value)))
        .collect();
    pairs.sort();
    pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("&")
}

fn encoded(bytes: &[u8], keep: &'static AsciiSet) -> String {
    percent_encode(bytes, keep).to_string()
}

/// A field's value without spaces around it, and with single ones in it.
fn trimmed(value: &[u8]) -> String {
    String::from_utf8_lossy(value).split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// `20150830` and `20150830T123600Z`.
fn spelled(now: OffsetDateTime) -> (String, String) {
    let now = now.to_offset(time::UtcOffset::UTC);
    let day = format!("{:04}{:02}{:02}", now.year(), u8::from(now.month()), now.day());
    let at = format!("{day}T{:02}{:02}{:02}Z", now.hour(), now.minute(), now.second());
    (day, at)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of AWS's own examples, signed at that time; gives the signature and the names of what is signed.
    fn signed(
        (value, region, service): (&str, &str, &str),
        (method, url, more): (Method, &str, &[(&'static str, &str)]),
        payload: &Payload,
        unix: i64,
    ) -> (String, String) {
        let signer = Signer::new(value, region, service).unwrap();
        let mut fields = HeaderMap::new();
        for (name, value) in more {
            fields.append(*name, value.parse().unwrap());
        }
        let now = OffsetDateTime::from_unix_timestamp(unix).unwrap();
        signer.sign(&method, &url.parse().unwrap(), &mut fields, payload, now).unwrap();
        let text = fields[AUTHORIZATION].to_str().unwrap().to_owned();
        let names = text.split("SignedHeaders=").nth(1).unwrap().split(',').next().unwrap().to_owned();
        (text.rsplit_once('=').unwrap().1.to_owned(), names)
    }

    /// AWS's test suite for Signature Version 4 (`aws-sig-v4-test-suite`), and the examples of the S3 API reference.
    #[test]
    fn awss_own_examples_come_to_the_same_signatures() {
        let suite = ("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "us-east-1", "service");
        let (at, empty) = (1_440_938_160, Payload::of(b""));
        for (method, query, expect) in [
            (Method::GET, "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            (Method::POST, "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
            (
                Method::GET,
                "?Param2=value2&Param1=value1",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
        ] {
            let url = format!("https://example.amazonaws.com/{query}");
            let (signature, names) = signed(suite, (method, &url, &[]), &empty, at);
            assert_eq!((signature.as_str(), names.as_str()), (expect, "host;x-amz-date"), "{query}");
        }
        let s3 = ("AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1", "s3");
        for (query, expect) in [
            ("lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ] {
            let url = format!("https://examplebucket.s3.amazonaws.com/?{query}");
            let (signature, names) = signed(s3, (Method::GET, &url, &[]), &empty, 1_369_353_600);
            assert_eq!(
                (signature.as_str(), names.as_str()),
                (expect, "host;x-amz-content-sha256;x-amz-date"),
                "{query}"
            );
        }
    }

    #[test]
    fn what_the_caller_signed_is_taken_out_and_its_fields_are_signed() {
        let signer = Signer::new("AKIDEXAMPLE:secret:the-token", "eu-central-1", "dynamodb").unwrap();
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("authorization", "AWS4-HMAC-SHA256 Credential=mine"),
            ("x-amz-date", "19990101T000000Z"),
            ("x-amz-security-token", "mine"),
            ("x-amz-content-sha256", "mine"),
            ("x-amz-target", "DynamoDB_20120810.GetItem"),
            ("content-type", "application/x-amz-json-1.0"),
            ("accept", "*/*"),
        ] {
            fields.insert(name, value.parse().unwrap());
        }
        let uri: Uri = "https://dynamodb.eu-central-1.amazonaws.com/".parse().unwrap();
        let now = OffsetDateTime::from_unix_timestamp(1_440_938_160).unwrap();
        signer.sign(&Method::POST, &uri, &mut fields, &Payload::of(b"{}"), now).unwrap();
        let text = fields[AUTHORIZATION].to_str().unwrap();
        assert!(
            text.contains("Credential=AKIDEXAMPLE/20150830/eu-central-1/dynamodb/aws4_request,"),
            "{text}"
        );
        assert!(text.contains("=content-type;host;x-amz-date;x-amz-security-token;x-amz-target,"), "{text}");
        assert!(fields[DATE] == "20150830T123600Z" && fields[SECURITY_TOKEN] == "the-token", "{fields:?}");
        assert!(fields[SECURITY_TOKEN].is_sensitive() && !fields.contains_key(CONTENT_SHA256));
        for bad in ["", "id", "id:", ":secret", "i d:secret", "id:secret:to\nken"] {
            let why = Signer::new(bad, "r", "s").unwrap_err();
            assert!(!why.contains("secret") || why.contains("SECRET"), "{why}");
        }
    }

    #[test]
    fn a_caller_may_say_its_bodys_digest_and_leave_it_unsigned_over_tls_alone() {
        let told = |text: &str, scheme| Payload::told(Some(text.as_bytes()), scheme);
        let digest = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";
        assert_eq!(told(digest, Scheme::Http), Ok(Some(Payload::of(b""))));
        assert_eq!(told("UNSIGNED-PAYLOAD", Scheme::Https), Ok(Some(Payload::unsigned())));
        assert_eq!(told("UNSIGNED-PAYLOAD", Scheme::Http), Ok(None), "it is read and signed");
        assert!(told("STREAMING-UNSIGNED-PAYLOAD-TRAILER", Scheme::Http).is_err());
        assert!(told("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", Scheme::Https).is_err());
        assert_eq!(Payload::told(None, Scheme::Https), Ok(None));
    }
}

//! The body of a model call: read whole, its room in the run's counted, its encoding undone.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header, request::Parts};
use strait_contract::code::Code;

use crate::{
    decide::Refusal,
    protocol::http::{
        Front,
        body::{Collect, Payload},
    },
};

/// Largest body of a model call, bytes.
pub(super) const MOST: usize = 32 * 1024 * 1024;

/// Reads the body whole and undoes its encoding. `body` is then what is sent, `head` fits it.
///
/// # Errors
/// Why it can't be read.
pub(super) async fn read(front: &Front, head: &mut Parts, body: &mut Payload) -> Result<Bytes, Refusal> {
    let context = &front.context;
    let read = body.collect(MOST, &context.caller.run.model_bytes);
    let coded = match tokio::time::timeout(context.idle_time(), read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(why)) => return Err(failed(&why)),
        Err(_) => return Err(failed(&Collect::Late)),
    };
    let text = decoded(&head.headers, &coded)?;
    if let Some(text) = &text {
        head.headers.remove(header::CONTENT_ENCODING);
        body.replace(text.clone());
    }
    for name in [header::CONTENT_LENGTH, header::EXPECT, header::TRAILER] {
        head.headers.remove(name);
    }
    Ok(text.unwrap_or(coded))
}

fn failed(why: &Collect) -> Refusal {
    match why {
        Collect::Source(_) => Refusal::new(Code::ClientGone, "the client broke off its body"),
        Collect::Full => {
            Refusal::new(Code::LimitExceeded, "the model calls under way take the run's whole room")
                .hint("try again when one of them is over")
        }
        Collect::TooLarge(most) => {
            let reason = format!("the request is longer than the {most} bytes of a model call");
            Refusal::new(Code::MalformedRequest, reason)
        }
        Collect::Trailers => Refusal::new(Code::MalformedRequest, "there are fields behind the body"),
        Collect::Late => Refusal::new(Code::MalformedRequest, "the body did not come in time"),
    }
}

/// The body without its encoding; `None` if it has none.
fn decoded(headers: &HeaderMap, coded: &Bytes) -> Result<Option<Bytes>, Refusal> {
    let named: Vec<String> = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|word| String::from_utf8_lossy(word).trim().to_ascii_lowercase())
        .filter(|word| !word.is_empty() && word != "identity")
        .collect();
    let words: Vec<&str> = named.iter().map(String::as_str).collect();
    let (coded, most) = (coded.as_ref(), u64::try_from(MOST).unwrap_or(u64::MAX));
    let mut text = Vec::new();
    let read = match words.as_slice() {
        [] => return Ok(None),
        ["gzip" | "x-gzip"] => MultiGzDecoder::new(coded).take(most + 1).read_to_end(&mut text),
        ["deflate"] => ZlibDecoder::new(coded).take(most + 1).read_to_end(&mut text),
        other => {
            let reason =
                format!("the request is encoded as `{}`, which can't be read here", other.join(", "));
            return Err(Refusal::new(Code::MalformedRequest, reason).hint("send it without, or with gzip"));
        }
    };
    match read {
        Ok(_) if text.len() > MOST => Err(failed(&Collect::TooLarge(MOST))),
        Ok(_) => Ok(Some(text.into())),
        Err(error) => {
            Err(Refusal::new(Code::MalformedRequest, format!("the request can't be decoded: {error}")))
        }
    }
}

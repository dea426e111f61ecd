//! SSH, as far as a refusal needs: an identification line and a disconnect message that carries the reason
//! (RFC 4253, sections 4.2 and 11.1; case 34).

use tokio::io::AsyncWriteExt;

use super::{stream, wire::Wire};
use crate::{
    call::{Call, Endpoint, Via, What},
    decide::{Refused, decide},
    pipeline::{self, Context},
    refuse,
};

const IDENTIFICATION: &[u8] = b"SSH-2.0-Strait\r\n";
/// `SSH_MSG_DISCONNECT`.
const DISCONNECT: u8 = 1;
/// `SSH_DISCONNECT_HOST_NOT_ALLOWED_TO_CONNECT`.
const NOT_ALLOWED: u32 = 1;

/// Whether a client's first bytes are those of SSH.
pub(crate) fn is_ssh(first: &[u8]) -> bool {
    first.starts_with(b"SSH-")
}

/// Serves an SSH stream like any other, but can say why it is refused.
pub(crate) async fn serve(context: Context, wire: Wire, to: Endpoint, via: Via) {
    let call = Call::new(context.caller.clone(), via, What::Stream(to));
    match decide(&context.gateway, call).await {
        Ok(permitted) => stream::carry(&context, permitted, wire).await,
        Err(refused) => {
            let (mut socket, _) = wire.into_parts();
            let _ = socket.write_all(&refusal(&refused)).await;
            pipeline::linger(socket).await;
        }
    }
}

/// The bytes of a refusal.
fn refusal(refused: &Refused) -> Vec<u8> {
    let text = format!(
        "{}. SSH is refused here; use an https:// URL, which the gateway can read and permit",
        refuse::message(refused)
    );
    let mut payload = vec![DISCONNECT];
    payload.extend_from_slice(&NOT_ALLOWED.to_be_bytes());
    string(&mut payload, &text);
    string(&mut payload, "en");
    let mut bytes = IDENTIFICATION.to_vec();
    bytes.extend_from_slice(&packet(&payload));
    bytes
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// A packet before any key exchange: length, padding length, payload, padding to a multiple of 8 (RFC 4253,
/// section 6).
fn packet(payload: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 8;
    let unpadded = payload.len().saturating_add(5);
    let short = BLOCK.saturating_sub(unpadded % BLOCK);
    let padding = if short < 4 { short.saturating_add(BLOCK) } else { short };
    let length = payload.len().saturating_add(padding).saturating_add(1);
    let mut bytes = u32::try_from(length).unwrap_or(0).to_be_bytes().to_vec();
    bytes.push(u8::try_from(padding).unwrap_or(0));
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().saturating_add(padding), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_whole_blocks_with_at_least_four_bytes_of_padding() {
        for len in 0..64 {
            let bytes = packet(&vec![7; len]);
            assert_eq!(bytes.len() % 8, 0, "{len}");
            let length = u32::from_be_bytes(bytes[..4].try_into().unwrap());
            assert_eq!(usize::try_from(length).unwrap(), bytes.len() - 4);
            assert!(bytes[4] >= 4);
            assert_eq!(usize::from(bytes[4]) + len + 5, bytes.len());
        }
    }
}

//! The script that carries what instances tell each other.

use redis::Value;

use super::{
    command::{CommandOutcome, EncodedCommand},
    request::NodeRequest,
    script,
};
use crate::transport::malformed_reply;
use weir_limit::Timestamp;
use weir_store::{
    board::{BoardPost, BoardReply},
    encoding, name,
};

pub(super) struct BoardRequest(EncodedCommand);

// === impl BoardRequest ===

impl BoardRequest {
    /// `now` is none in production, where Redis' clock is used.
    pub(super) fn new(post: &BoardPost<'_>, now: Option<Timestamp>, prefix: &str) -> Self {
        let text = |number: u64| number.to_string().into_bytes();
        let micros = |at: Timestamp| text(script::micros(at));
        let arguments = [
            now.map(micros).unwrap_or_default(),
            post.instance.into(),
            post.summary.unwrap_or_default().into(),
            post.note.unwrap_or_default().into(),
            micros(post.read_until),
            text(post.reads_summaries.into()),
            text(BoardPost::NOTE_LIFE.as_nanos() / 1_000),
            text(BoardPost::SUMMARY_LIFE.as_nanos() / 1_000),
            text(BoardPost::MAX_NOTES as u64),
            text(BoardPost::MAX_READ as u64),
        ];
        Self(EncodedCommand::Run {
            script: &script::BOARD,
            keys: name::board(prefix),
            arguments: arguments.into_iter().collect(),
        })
    }
}

impl NodeRequest for BoardRequest {
    type Reply = BoardReply;

    const DECIDES: bool = false;

    fn encoded(&self) -> &EncodedCommand {
        &self.0
    }

    fn outcome(&self, value: &Value) -> CommandOutcome<BoardReply> {
        CommandOutcome::Done(reply(value).ok_or_else(malformed_reply))
    }
}

fn reply(value: &Value) -> Option<BoardReply> {
    let Value::Array(values) = value else { return None };
    let [now, Value::Int(written), Value::Array(notes), Value::Array(summaries)] = &values[..] else {
        return None;
    };
    let notes = notes.chunks(2).map(|note| Some((instant(note.get(1)?)?, bytes(&note[0])?.to_vec())));
    let summaries = summaries.chunks(2).map(|summary| {
        let name = String::from_utf8_lossy(bytes(&summary[0])?).into_owned();
        Some((name, bytes(summary.get(1)?)?.to_vec()))
    });
    Some(BoardReply {
        now: instant(now)?,
        is_written: *written == 1,
        notes: notes.collect::<Option<_>>()?,
        summaries: summaries.collect::<Option<_>>()?,
    })
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

/// Of microseconds, as RESP2 writes scores, or as a number of RESP3.
fn instant(value: &Value) -> Option<Timestamp> {
    let micros: f64 = redis::from_redis_value(value.clone()).ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bound on what Redis sends"
    )]
    let micros = micros.clamp(0.0, 9e15) as u64;
    Some(encoding::timestamp(micros))
}

//! Watches for resets of calls that were answered with the name of a request in flight: such a reset crosses the answer,
//! so the caller knows no name and never ends the request. h2 hides it, since the call is over.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::service::BegunRequest;
use crate::connections::{AccountHold, ConnectionAccount};

/// The answers that a connection remembers.
const REMEMBERED: usize = 1_024;

/// The resets before an answer that it remembers: those of a batch at most.
const RESETS: usize = 256;

/// The length of what a client sends before its first frame.
const PREFACE: usize = 24;

/// The length of a frame's header.
const HEADER: usize = 9;

const RST_STREAM: u8 = 3;

/// The last answers of a connection that have names. Only the thread of the connection locks it.
#[derive(Debug, Default)]
pub(super) struct NamedAnswers(Mutex<AnswersAndResets>);

#[derive(Debug, Default)]
struct AnswersAndResets {
    frames: FrameScanner,
    answers: VecDeque<RememberedAnswer>,
    /// Streams without an answer so far: h2 may not have read the reset yet.
    resets: VecDeque<u32>,
}

#[derive(Debug)]
struct RememberedAnswer {
    stream: u32,
    begun: Box<BegunRequest>,
    /// What the connection holds for it; none if it holds too much.
    _hold: Option<AccountHold>,
}

/// Finds the resets among the frames of a client, in any parts. (RFC 9113, section 4.1)
#[derive(Debug)]
struct FrameScanner {
    header: [u8; HEADER],
    filled: usize,
    /// The bytes before the next header.
    skipped: usize,
}

/// A connection whose client's resets are watched for, if there are `answers`.
pub(super) struct Watched<'a, I, F> {
    io: I,
    answers: Option<&'a NamedAnswers>,
    undo: F,
}

// === impl NamedAnswers ===

impl NamedAnswers {
    /// Remembers an answer to `stream`. Returns it if the stream was reset before.
    pub(super) fn add(
        &self,
        stream: u32,
        begun: Box<BegunRequest>,
        account: &Arc<ConnectionAccount>,
    ) -> Option<Box<BegunRequest>> {
        let mut state = self.0.lock();
        if state.resets.contains(&stream) {
            return Some(begun);
        }
        let weight = size_of::<RememberedAnswer>() + begun.weight();
        state.answers.push_back(RememberedAnswer { stream, begun, _hold: account.hold(weight).ok() });
        if state.answers.len() > REMEMBERED {
            state.answers.pop_front();
        }
        None
    }

    fn scan(&self, bytes: &[u8], undo: &impl Fn(&BegunRequest)) {
        let mut state = self.0.lock();
        let AnswersAndResets { frames, answers, resets } = &mut *state;
        frames.scan(bytes, |stream| {
            if let Some(i) = answers.iter().rposition(|answer| answer.stream == stream) {
                answers.remove(i).iter().for_each(|answer| undo(&answer.begun));
                return;
            }
            resets.push_back(stream);
            if resets.len() > RESETS {
                resets.pop_front();
            }
        });
    }
}

// === impl FrameScanner ===

impl Default for FrameScanner {
    fn default() -> Self {
        Self { header: [0; HEADER], filled: 0, skipped: PREFACE }
    }
}

impl FrameScanner {
    fn scan(&mut self, mut bytes: &[u8], mut reset: impl FnMut(u32)) {
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let part = bytes.len().min(HEADER - self.filled);
            self.header[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
            self.filled += part;
            bytes = &bytes[part..];
            if self.filled == HEADER {
                let [a, b, c, kind, _, stream @ ..] = self.header;
                self.skipped = u32::from_be_bytes([0, a, b, c]) as usize;
                self.filled = 0;
                if kind == RST_STREAM {
                    // the first bit is reserved
                    reset(u32::from_be_bytes(stream) & !(1 << 31));
                }
            }
        }
    }
}

// === impl Watched ===

impl<'a, I, F: Fn(&BegunRequest)> Watched<'a, I, F> {
    pub(super) const fn new(io: I, answers: Option<&'a NamedAnswers>, undo: F) -> Self {
        Self { io, answers, undo }
    }
}

impl<I: AsyncRead + Unpin, F: Fn(&BegunRequest) + Unpin> AsyncRead for Watched<'_, I, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        if let Some(answers) = self.answers {
            answers.scan(&into.filled()[before..], &self.undo);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Watched<'_, I, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Connections;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("it is short").to_be_bytes();
        [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn resets_are_found_in_parts_of_any_size() {
        let reset = |stream| frame(RST_STREAM, stream, &[0, 0, 0, 8]);
        let sent = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, &[]),
            frame(1, 1, &[0x83; 40]),
            // what looks like a reset, within a message
            frame(0, 1, &reset(77)),
            reset(1),
            frame(0, 3, &[]),
            reset(3 | 1 << 31),
            reset(5),
        ]
        .concat();
        for size in [1, 2, 3, 7, 9, 10, 24, 100, sent.len()] {
            let (mut scanner, mut found) = (FrameScanner::default(), Vec::new());
            for part in sent.chunks(size) {
                scanner.scan(part, |stream| found.push(stream));
            }
            assert_eq!(found, [1, 3, 5], "{size}");
        }
    }

    #[test]
    fn an_answer_and_its_reset_meet_in_either_order() {
        let answers = NamedAnswers::default();
        let opened = Arc::new(Connections::default()).open().expect("the first connection");
        let account = opened.account();
        let begun = |name: &str| Box::new(BegunRequest::new("shop", name));
        let undone = Mutex::new(Vec::new());
        let undo = |begun: &BegunRequest| undone.lock().push(begun.clone());
        answers.scan(&[0; PREFACE], &undo);
        for stream in [1, 3] {
            assert_eq!(answers.add(stream, begun(&stream.to_string()), account), None);
        }
        for stream in [3, 5, 3] {
            answers.scan(&frame(RST_STREAM, stream, &[0; 4]), &undo);
        }
        assert_eq!(*undone.lock(), [*begun("3")]);
        assert_eq!(answers.add(5, begun("5"), account), Some(begun("5")));
        // neither grows without bound
        for stream in (7..10_000).step_by(2) {
            assert_eq!(answers.add(stream, begun("x"), account), None);
            answers.scan(&frame(RST_STREAM, stream + 1, &[0; 4]), &undo);
        }
        let state = answers.0.lock();
        assert_eq!((state.answers.len(), state.resets.len()), (REMEMBERED, RESETS));
    }
}

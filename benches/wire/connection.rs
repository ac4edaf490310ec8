//! A client's end of one connection. It knows no socket: bytes come in, bytes go out.

use std::time::Instant;

use super::{
    frame::{self, Frame},
    histogram::Histogram,
    hpack::Answers,
    message::{self, Asked, Requests},
};

/// One of so many answers is decoded; of all others the headers are read, and that there is a message.
const SAMPLE: u64 = 64;

/// Places for requests that have not been answered, for each that may be in flight: an answer may be late while others
/// overtake it.
const PLACES: usize = 16;

/// What is wrong with a server, or with what it said.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server said {0}, which this client does not expect")]
    Unexpected(String),
    #[error("the server answered a request with an error, or with nothing like an answer: {0}")]
    Answer(String),
    #[error("{0}")]
    Of(String, #[source] Box<Fault>),
    #[error("{0} cannot be built")]
    Build(&'static str),
    #[error("nothing was answered for {0:?}")]
    Silent(std::time::Duration),
}

/// A request that waits for its answer.
#[derive(Clone, Copy)]
struct Open {
    since: Instant,
    /// Whether there was a message.
    data: bool,
}

/// One connection.
pub(crate) struct Connection {
    asked: Asked,
    /// What waits to be sent.
    pub(crate) out: Vec<u8>,
    answers: Answers,
    /// By the number of their streams, which go round.
    open: Box<[Option<Open>]>,
    next_stream: u32,
    in_flight: usize,
    /// Answers that were errors, where those are let pass.
    pub(crate) errors: u64,
    most: usize,
    /// Bytes of DATA that the server still lets in, over all streams.
    credit: u64,
    /// Bytes of DATA that came since the server was last given as many.
    taken: u32,
}

impl Connection {
    /// A connection that asks at most `in_flight` at once.
    pub(crate) fn new(asked: Asked, in_flight: usize) -> Self {
        let mut out = frame::PREFACE.to_vec();
        let windows = [(frame::ENABLE_PUSH, 0), (frame::INITIAL_WINDOW_SIZE, frame::MAX_WINDOW)];
        frame::settings(&windows, &mut out);
        frame::window_update(frame::MAX_WINDOW - frame::DEFAULT_WINDOW, &mut out);
        Self {
            asked,
            out,
            answers: Answers::default(),
            open: vec![None; (in_flight * PLACES).next_power_of_two()].into(),
            next_stream: 1,
            in_flight: 0,
            errors: 0,
            most: in_flight,
            credit: frame::DEFAULT_WINDOW.into(),
            taken: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// LimitChecks for one more thing, as of `since`. Whether there was room for it.
    pub(crate) fn ask(&mut self, requests: &mut Requests, since: Instant) -> bool {
        let data = requests.data() as u64;
        let place = self.place(self.next_stream);
        if self.in_flight == self.most || self.credit < data || self.open[place].is_some() {
            return false;
        }
        requests.write(self.next_stream, self.next_stream == 1, &mut self.out);
        self.open[place] = Some(Open { since, data: false });
        self.next_stream += 2;
        self.in_flight += 1;
        self.credit -= data;
        true
    }

    /// Reads all whole frames at the beginning of `bytes`, which came at `now`. How many bytes that were.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        now: Instant,
        latencies: &mut Histogram,
    ) -> Result<usize, Fault> {
        let mut done = 0;
        while let Some(frame) = Frame::first(&bytes[done..]) {
            done += frame::HEADER + frame.payload.len();
            self.frame(&frame, now, latencies)?;
        }
        Ok(done)
    }

    fn frame(&mut self, frame: &Frame<'_>, now: Instant, latencies: &mut Histogram) -> Result<(), Fault> {
        match frame.kind {
            frame::HEADERS => self.headers(frame, now, latencies),
            frame::DATA => self.data(frame),
            frame::SETTINGS if !frame.has(frame::ACK) => {
                frame::header(0, frame::SETTINGS, frame::ACK, 0, &mut self.out);
                self.settings(frame.payload)
            }
            frame::PING if !frame.has(frame::ACK) => {
                frame::header(frame.payload.len(), frame::PING, frame::ACK, 0, &mut self.out);
                self.out.extend_from_slice(frame.payload);
                Ok(())
            }
            frame::WINDOW_UPDATE if frame.stream == 0 => {
                self.credit += u64::from(frame.number().unwrap_or(0));
                Ok(())
            }
            frame::GOAWAY | frame::RST_STREAM | frame::CONTINUATION => {
                let said = format!("a frame of type {} with {:?}", frame.kind, frame.payload);
                Err(Fault::Unexpected(said))
            }
            _ => Ok(()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        const MAX_CONCURRENT_STREAMS: u16 = 3;
        for setting in payload.as_chunks::<6>().0 {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match name {
                // a request is sent whole, or not at all
                frame::INITIAL_WINDOW_SIZE if value < 16_384 => {
                    return Err(Fault::Unexpected(format!("a window of {value}")));
                }
                MAX_CONCURRENT_STREAMS => self.most = self.most.min(value as usize),
                _ => {}
            }
        }
        Ok(())
    }

    fn data(&mut self, frame: &Frame<'_>) -> Result<(), Fault> {
        self.replenish(u32::try_from(frame.payload.len()).unwrap_or(0));
        if frame.has(frame::PADDED | frame::END_STREAM) {
            return Err(Fault::Unexpected("padding, or a stream that ends without trailers".into()));
        }
        if frame.payload.is_empty() {
            return Ok(());
        }
        if u64::from(frame.stream / 2).is_multiple_of(SAMPLE)
            && !message::is_plausible(frame.payload, self.asked)
        {
            return Err(Fault::Answer(format!("message {:?}", frame.payload)));
        }
        self.opened(frame.stream)?.data = true;
        Ok(())
    }

    /// Gives the server back what it has sent, long before it lacks it.
    fn replenish(&mut self, bytes: u32) {
        self.taken += bytes;
        if self.taken > frame::MAX_WINDOW / 2 {
            frame::window_update(self.taken, &mut self.out);
            self.taken = 0;
        }
    }

    fn headers(&mut self, frame: &Frame<'_>, now: Instant, latencies: &mut Histogram) -> Result<(), Fault> {
        if frame.has(frame::PADDED | frame::PRIORITY) || !frame.has(frame::END_HEADERS) {
            return Err(Fault::Unexpected("headers in parts, or with padding".into()));
        }
        let zero = self.answers.read(frame.payload);
        let zero = zero.map_err(|_| Fault::Unexpected(format!("headers {:?}", frame.payload)))?;
        if !frame.has(frame::END_STREAM) {
            return Ok(());
        }
        let open = *self.opened(frame.stream)?;
        if self.asked.limitador && zero == Some(false) {
            self.errors += 1;
        } else if !open.data || zero != Some(true) {
            let message = if open.data { "a message" } else { "no message" };
            return Err(Fault::Answer(format!("{message}, grpc-status is 0: {zero:?}")));
        }
        latencies.add(now.saturating_duration_since(open.since));
        let place = self.place(frame.stream);
        self.open[place] = None;
        self.in_flight -= 1;
        Ok(())
    }

    fn opened(&mut self, stream: u32) -> Result<&mut Open, Fault> {
        let place = self.place(stream);
        let open = self.open[place].as_mut();
        open.ok_or_else(|| Fault::Unexpected(format!("something about stream {stream}, which is not open")))
    }

    fn place(&self, stream: u32) -> usize {
        (stream / 2) as usize & (self.open.len() - 1)
    }
}

//! The client's end of one connection, independent of sockets: bytes in, bytes out.

use std::time::Instant;

use super::{
    frame::{self, Frame},
    histogram::Histogram,
    hpack::ResponseHeaders,
    message::{self, Requests, Workload},
};

/// Every 64th response is decoded; of the others only the headers and the presence of a message are checked.
const SAMPLE: u64 = 64;

/// Slots per request in flight, since other responses may overtake a late one.
const SLOTS: usize = 16;

/// A fault of a server, or of its responses.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error("the server sent {0}, which this client does not expect")]
    Unexpected(String),
    #[error("the server sent an error or an implausible response: {0}")]
    Response(String),
    #[error("{0}")]
    Server(String, #[source] Box<Fault>),
    #[error("{0} cannot be built")]
    Build(&'static str),
    #[error("no response for {0:?}")]
    Timeout(std::time::Duration),
}

/// A request without a response yet.
#[derive(Clone, Copy)]
struct Open {
    since: Instant,
    /// Whether a message arrived.
    data: bool,
}

/// One connection.
pub(crate) struct Connection {
    workload: Workload,
    /// Bytes to send.
    pub(crate) out: Vec<u8>,
    response_headers: ResponseHeaders,
    /// Ring of open requests, by stream number.
    open: Box<[Option<Open>]>,
    next_stream: u32,
    in_flight: usize,
    /// The number of tolerated error responses.
    pub(crate) errors: u64,
    max_in_flight: usize,
    /// The connection's flow control window for DATA that this client sends.
    credit: u64,
    /// Bytes of DATA received since the last window update.
    received: u32,
}

impl Connection {
    /// Returns a connection with at most `in_flight` open requests.
    pub(crate) fn new(workload: Workload, in_flight: usize) -> Self {
        let mut out = frame::PREFACE.to_vec();
        let windows = [(frame::ENABLE_PUSH, 0), (frame::INITIAL_WINDOW_SIZE, frame::MAX_WINDOW)];
        frame::settings(&windows, &mut out);
        frame::window_update(frame::MAX_WINDOW - frame::DEFAULT_WINDOW, &mut out);
        Self {
            workload,
            out,
            response_headers: ResponseHeaders::default(),
            open: vec![None; (in_flight * SLOTS).next_power_of_two()].into(),
            next_stream: 1,
            in_flight: 0,
            errors: 0,
            max_in_flight: in_flight,
            credit: frame::DEFAULT_WINDOW.into(),
            received: 0,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues the next request, whose latency counts from `since`. Returns false if too many requests are open.
    pub(crate) fn send(&mut self, requests: &mut Requests, since: Instant) -> bool {
        let data = requests.data() as u64;
        let slot = self.slot(self.next_stream);
        if self.in_flight == self.max_in_flight || self.credit < data || self.open[slot].is_some() {
            return false;
        }
        requests.write(self.next_stream, self.next_stream == 1, &mut self.out);
        self.open[slot] = Some(Open { since, data: false });
        self.next_stream += 2;
        self.in_flight += 1;
        self.credit -= data;
        true
    }

    /// Processes all complete frames at the start of `bytes`, which arrived at `now`, and returns their length.
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
                let text = format!("a frame of type {} with {:?}", frame.kind, frame.payload);
                Err(Fault::Unexpected(text))
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
                // this client sends every request's data at once
                frame::INITIAL_WINDOW_SIZE if value < 16_384 => {
                    return Err(Fault::Unexpected(format!("a window of {value}")));
                }
                MAX_CONCURRENT_STREAMS => self.max_in_flight = self.max_in_flight.min(value as usize),
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
            && !message::is_plausible(frame.payload, self.workload)
        {
            return Err(Fault::Response(format!("message {:?}", frame.payload)));
        }
        self.opened(frame.stream)?.data = true;
        Ok(())
    }

    /// Updates the server's window, long before it is exhausted.
    fn replenish(&mut self, bytes: u32) {
        self.received += bytes;
        if self.received > frame::MAX_WINDOW / 2 {
            frame::window_update(self.received, &mut self.out);
            self.received = 0;
        }
    }

    fn headers(&mut self, frame: &Frame<'_>, now: Instant, latencies: &mut Histogram) -> Result<(), Fault> {
        if frame.has(frame::PADDED | frame::PRIORITY) || !frame.has(frame::END_HEADERS) {
            return Err(Fault::Unexpected("headers in parts, or with padding".into()));
        }
        let zero = self.response_headers.read(frame.payload);
        let zero = zero.map_err(|_| Fault::Unexpected(format!("headers {:?}", frame.payload)))?;
        if !frame.has(frame::END_STREAM) {
            return Ok(());
        }
        let open = *self.opened(frame.stream)?;
        if self.workload.limitador && zero == Some(false) {
            self.errors += 1;
        } else if !open.data || zero != Some(true) {
            let message = if open.data { "a message" } else { "no message" };
            return Err(Fault::Response(format!("{message}, grpc-status is 0: {zero:?}")));
        }
        latencies.add(now.saturating_duration_since(open.since));
        let slot = self.slot(frame.stream);
        self.open[slot] = None;
        self.in_flight -= 1;
        Ok(())
    }

    fn opened(&mut self, stream: u32) -> Result<&mut Open, Fault> {
        let slot = self.slot(stream);
        let open = self.open[slot].as_mut();
        open.ok_or_else(|| Fault::Unexpected(format!("a frame for stream {stream}, which is not open")))
    }

    fn slot(&self, stream: u32) -> usize {
        (stream / 2) as usize & (self.open.len() - 1)
    }
}

//! The example of requests in flight, with the real Envoy: callers that are rejected, that wait for the answer, that leave
//! while their request is at the service, and that leave at once.

use std::{
    collections::HashSet,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Stack,
    http::{self, HttpRequest},
    replace_once, wait,
};

const LIMIT: usize = 8;
const CALLERS: usize = 40;

/// The requests that the service answers before the test ends.
const ANSWERS: usize = 400;

/// The service answers requests together when as many as the limit are there, else after this time.
const LONGEST: Duration = Duration::from_millis(100);

/// Between two looks at all connections.
const PAUSE: Duration = Duration::from_micros(500);

/// What the service has seen.
#[derive(Default)]
struct Seen {
    most: usize,
    /// Requests that were answered when as many as the limit were there.
    full: usize,
    answered: usize,
    /// Those of callers that leave, by their number.
    leaving: HashSet<usize>,
}

/// A service that counts the requests that are at it at once.
struct SlowService {
    seen: Mutex<Seen>,
    arrived: Condvar,
    stops: AtomicBool,
}

/// A request at the service.
struct OpenRequest {
    stream: TcpStream,
    since: Instant,
}

// === impl SlowService ===

impl SlowService {
    fn start() -> (SocketAddr, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let address = listener.local_addr().expect("its address");
        let service =
            Arc::new(Self { seen: Mutex::default(), arrived: Condvar::new(), stops: AtomicBool::new(false) });
        let running = Arc::clone(&service);
        thread::spawn(move || running.serve(&listener));
        (address, service)
    }

    /// One thread: whoever has left is gone before another is counted.
    fn serve(&self, listener: &TcpListener) {
        let mut idle: Vec<TcpStream> = Vec::new();
        let mut open: Vec<OpenRequest> = Vec::new();
        while !self.stops.load(Ordering::Relaxed) {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).expect("a socket that does not block");
                idle.push(stream);
            }
            let mut began: Vec<(OpenRequest, Option<usize>)> = Vec::new();
            idle = idle.into_iter().filter_map(|stream| read(stream, &mut began)).collect();
            open.retain(|request| !has_left(&request.stream));
            let mut seen = self.seen.lock().expect("no panic");
            for (request, leaving) in began {
                open.push(request);
                seen.leaving.extend(leaving);
            }
            seen.most = seen.most.max(open.len());
            self.arrived.notify_all();
            let is_full = open.len() >= LIMIT;
            let is_due = |request: &OpenRequest| is_full || request.since.elapsed() >= LONGEST;
            for mut request in open.extract_if(.., |request| is_due(request)) {
                seen.answered += 1;
                seen.full += usize::from(is_full);
                if request.stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok() {
                    idle.push(request.stream);
                }
            }
            drop(seen);
            thread::park_timeout(PAUSE);
        }
    }
}

/// Returns the connection if no whole request is there; none if it is closed. Requests have no body.
fn read(mut stream: TcpStream, began: &mut Vec<(OpenRequest, Option<usize>)>) -> Option<TcpStream> {
    let mut buffer = [0; 4_096];
    match stream.peek(&mut buffer) {
        Ok(0) => None,
        Ok(length) => {
            let head = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if !head.ends_with("\r\n\r\n") {
                return Some(stream);
            }
            stream.read_exact(&mut buffer[..length]).expect("what is there");
            let leaving = head.lines().find_map(|line| line.strip_prefix("x-leaving: "));
            let leaving = leaving.map(|number| number.parse().expect("a number"));
            began.push((OpenRequest { stream, since: Instant::now() }, leaving));
            None
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(stream),
        Err(_) => None,
    }
}

fn has_left(stream: &TcpStream) -> bool {
    match stream.peek(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Returns the metric of the rule.
fn metric(stack: &Stack, name: &str) -> usize {
    let page = http::send(stack.weir.http, &HttpRequest::get("/metrics")).body;
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}

#[test]
fn never_more_than_the_limit_are_at_the_service() {
    let (address, service) = SlowService::start();
    let own = format!("socket_address: {{ address: {}, port_value: {} }}", address.ip(), address.port());
    let inside = "envoy_internal_address: { server_listener_name: service }";
    let stack = Stack::from_example_with(
        "examples/envoy-in-flight/config",
        "examples/envoy-in-flight/envoy.yaml",
        &[],
        |text| replace_once(&text, inside, &own),
    );
    let (rejected, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = || service.seen.lock().expect("no panic").answered >= ANSWERS;
    let ask = || HttpRequest::get("/").with("x-user", "acme");
    thread::scope(|threads| {
        for caller in 0..CALLERS {
            let (stack, service, rejected, left) = (&stack, &service, &rejected, &left);
            threads.spawn(move || {
                let mut turn = caller;
                while !is_over() {
                    turn += CALLERS;
                    if caller % 8 == 1 && (turn / CALLERS).is_multiple_of(2) {
                        // its reset may cross the answer of weir; many at once are a flood
                        let mut stream = TcpStream::connect(stack.envoy.address).expect("Envoy listens");
                        stream.write_all(ask().to_wire().as_bytes()).expect("it takes it");
                    } else if caller % 4 != 0 {
                        match stack.send(&ask()).status {
                            200 => {}
                            429 => drop(rejected.fetch_add(1, Ordering::Relaxed)),
                            other => panic!("status {other}"),
                        }
                    } else if leave(stack.envoy.address, &ask(), turn, service) {
                        left.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let seen = std::mem::take(&mut *service.seen.lock().expect("no panic"));
    let (rejected, left) = (rejected.into_inner(), left.into_inner());
    assert_eq!(seen.most, LIMIT, "{rejected} rejected, {left} left");
    assert!(seen.full * 2 > seen.answered, "{} of {} at once with all others", seen.full, seen.answered);
    assert!(rejected > 0 && left > 0, "{rejected} rejected, {left} left");
    wait::until("every request has ended", || (metric(&stack, "weir_in_flight") == 0).then_some(()));
    let of_rule = |name: &str| metric(&stack, name);
    let undone = of_rule("weir_in_flight_undone_total");
    assert_eq!(of_rule("weir_in_flight_started_total"), of_rule("weir_in_flight_ended_total") + undone);
    assert_eq!(of_rule("weir_in_flight_unknown_total"), 0);
    service.stops.store(true, Ordering::Relaxed);
}

/// With the service inside of Envoy, as users try it first.
#[test]
fn the_example_needs_no_other_service() {
    let stack = Stack::from_example_with(
        "examples/envoy-in-flight/config",
        "examples/envoy-in-flight/envoy.yaml",
        &[],
        |text| replace_once(&text, "fixed_delay: 5s", "fixed_delay: 0.01s"),
    );
    let response = stack.get_with("x-user", "acme");
    assert_eq!((response.status, &*response.body), (200, "done\n"));
    wait::until("the request has ended", || {
        (metric(&stack, "weir_in_flight_ended_total") == 1).then_some(())
    });
}

/// Asks, and leaves once the request is at the service. Returns false if it is rejected.
fn leave(envoy: SocketAddr, request: &HttpRequest, number: usize, service: &SlowService) -> bool {
    let mut stream = TcpStream::connect(envoy).expect("Envoy listens");
    let request = request.clone().with("x-leaving", &number.to_string());
    stream.write_all(request.to_wire().as_bytes()).expect("it takes it");
    stream.set_nonblocking(true).expect("a socket that does not block");
    let mut seen = service.seen.lock().expect("no panic");
    loop {
        if seen.leaving.contains(&number) {
            return true;
        }
        // an answer without the service is a rejection
        if !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return false;
        }
        seen = service.arrived.wait_timeout(seen, LONGEST).expect("no panic").0;
    }
}

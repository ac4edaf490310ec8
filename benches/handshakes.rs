//! Measures what a storm of TLS handshakes does to decisions: the latencies of one connection's decisions with and
//! without the storm, in turns, so that disturbances of the machine affect both.
//!
//! weir runs on one processor, where its thread of handshakes competes with the thread that decides. The client runs on
//! another one, with the storm's clients at the lowest priority.
//!
//! `cargo bench --bench handshakes`

use weir_benches::machine;
use weir_testing::authority;

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{self, Runtime},
    time::{MissedTickBehavior, interval},
};
use tokio_rustls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tonic::transport::Channel;
use weir_net::grpc_client::{Address, StreamTls, connect};
use weir_proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
};

use crate::{
    authority::{Authority, Leaf},
    machine::{Cores, Machine},
};

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
";

const ROUNDS: usize = 10;
const TIME: Duration = Duration::from_secs(1);

/// The time between two decisions.
const PACE: Duration = Duration::from_millis(1);

/// The connections that the storm opens at a time.
const STORM: usize = 8;

/// How long to wait for an event.
const DEADLINE: Duration = Duration::from_secs(20);

/// A program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, command, address, authority] = arguments.as_slice()
        && command == "storm"
    {
        storm(address.parse().expect("an address"), authority.as_ref());
        return;
    }
    let machine = Machine::new();
    println!("{}", machine.take_last());
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new("authority");
    let pair = authority.sign_leaf(Leaf { rsa: true, ..Leaf::new(&["localhost"]) });
    for (name, text) in [("ca.crt", &authority.pem()), ("tls.crt", &pair.certificate), ("tls.key", &pair.key)]
    {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let (_weir, grpc, http) = serve(&machine, folder.path());
    let authority = folder.path().join("ca.crt");
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut client = runtime.block_on(async {
        let tls = StreamTls { config: client_config(&authority), server_name: None };
        let target = Address::tcp("localhost", grpc.port());
        RateLimitServiceClient::new(connect(&target, Some(&tls), DEADLINE).await.expect("a connection"))
    });

    measure(&runtime, &mut client);
    let (mut calm, mut stormy, mut ratios, mut handshakes) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    for _ in 0..ROUNDS {
        let mut without = measure(&runtime, &mut client);
        let storm = start_storm(grpc, &authority);
        let before = handshakes_of(http);
        let started = Instant::now();
        while handshakes_of(http) < before + 20.0 {
            assert!(started.elapsed() < DEADLINE, "the storm makes no handshakes");
            thread::sleep(Duration::from_millis(10));
        }
        let (before, started) = (handshakes_of(http), Instant::now());
        let mut with = measure(&runtime, &mut client);
        handshakes += (handshakes_of(http) - before) / started.elapsed().as_secs_f64();
        drop(storm);
        ratios.push(at(&mut with, 0.99).as_secs_f64() / at(&mut without, 0.99).as_secs_f64());
        calm.append(&mut without);
        stormy.append(&mut with);
    }
    #[expect(clippy::cast_precision_loss, reason = "a number of rounds")]
    let rate = handshakes / ROUNDS as f64;
    ratios.sort_by(f64::total_cmp);
    println!("| decisions, one each millisecond | p50 | p99 | p99.9 |\n| --- | --- | --- | --- |");
    for (name, times) in
        [("alone", &mut calm), (&*format!("beside {rate:.0} handshakes a second"), &mut stormy)]
    {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| at(times, quantile));
        println!("| {name} | {p50:.0?} | {p99:.0?} | {p999:.0?} |");
    }
    println!("p99 with the storm / without, median of {ROUNDS} rounds: {:.2}", ratios[ROUNDS / 2]);
}

/// Starts weir with the certificates in `folder`. Returns it with the addresses of gRPC and HTTP.
fn serve(machine: &Machine, folder: &Path) -> (Running, SocketAddr, SocketAddr) {
    let config = folder.join("config");
    fs::create_dir(&config).expect("a folder");
    fs::write(config.join("rules.yaml"), RULES).expect("a file");
    let mut command = machine.command(env!("CARGO_BIN_EXE_weir"), Cores::One);
    command
        .args(["serve", "--config"])
        .arg(config)
        .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
        .envs([("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("GRPC_SERVER_USE_TLS", "true")])
        .envs([
            ("GRPC_SERVER_TLS_CERT", folder.join("tls.crt")),
            ("GRPC_SERVER_TLS_KEY", folder.join("tls.key")),
        ])
        .env("WEIR_WORKERS", "1")
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("weir can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let line =
        lines.find_map(|line| line.expect("a line").strip_prefix("weir: listening ").map(str::to_owned));
    let line = line.expect("weir listens");
    // a full pipe would stop it
    thread::spawn(move || lines.for_each(drop));
    let address = |name: &str| {
        let mut addresses = line.split(' ').filter_map(|part| part.split_once('='));
        addresses.find(|(server, _)| *server == name).and_then(|(_, address)| address.parse().ok())
    };
    (Running(child), address("grpc").expect("an address"), address("http").expect("an address"))
}

/// Decides at a constant pace, and returns the latencies.
fn measure(runtime: &Runtime, client: &mut RateLimitServiceClient<Channel>) -> Vec<Duration> {
    let entries = vec![Entry { key: "k".into(), value: "v".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 1 };
    runtime.block_on(async {
        let mut ticks = interval(PACE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut times, started) = (Vec::new(), Instant::now());
        while started.elapsed() < TIME {
            ticks.tick().await;
            let request = request.clone();
            let sent = Instant::now();
            client.should_rate_limit(request).await.expect("a decision");
            times.push(sent.elapsed());
        }
        times
    })
}

/// Returns a quantile.
fn at(times: &mut [Duration], quantile: f64) -> Duration {
    times.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (times.len() as f64 * quantile) as usize;
    times[index.min(times.len() - 1)]
}

/// Returns the handshakes that weir has completed.
fn handshakes_of(http: SocketAddr) -> f64 {
    let mut stream = TcpStream::connect(http).expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n").expect("a request");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    let value = page.lines().find_map(|line| line.strip_prefix("weir_tls_handshakes_total ")?.parse().ok());
    value.expect("the metric")
}

/// Starts this program again, to make handshakes without end. It gets the processor's time that this process leaves.
fn start_storm(grpc: SocketAddr, authority: &Path) -> Running {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(env::current_exe().expect("this program"));
    command.args(["storm", &grpc.to_string()]).arg(authority);
    Running(command.spawn().expect("it can be started"))
}

/// Makes handshakes until it is killed.
fn storm(grpc: SocketAddr, authority: &Path) {
    let config = client_config(authority);
    let handshakes = || -> ! {
        loop {
            let name = ServerName::try_from("localhost").expect("a name");
            let connection = ClientConnection::new(Arc::clone(&config), name).expect("a client");
            let stream = TcpStream::connect(grpc).expect("it listens");
            let mut stream = StreamOwned::new(connection, stream);
            // the server's settings are the first that it sends after the handshake
            let _ = stream.read(&mut [0; 64]);
        }
    };
    thread::scope(|scope| (0..STORM).for_each(|_| drop(scope.spawn(handshakes))));
}

/// Returns a client that makes a full handshake each time.
fn client_config(authority: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(ALL_VERSIONS)
        .expect("valid versions")
        .with_root_certificates(roots);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.resumption = tokio_rustls::rustls::client::Resumption::disabled();
    Arc::new(config)
}

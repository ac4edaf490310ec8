//! Looks up SRV records at the name servers of the system.

use std::{fs, io, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::dns::{Answer, MAX_ANSWER, SrvName, parse_answer};
use crate::store::transport::{Address, RandomGenerator};

/// Where the system names its name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The times that every name server is asked.
const ATTEMPTS: usize = 2;

/// The name servers that look up `MEMCACHE_SRV`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NameServers {
    /// Those of `/etc/resolv.conf`, which is read for each look-up, with the domains that it searches.
    #[default]
    System,
    /// These, in their order.
    List(Vec<SocketAddr>),
}

/// The name servers, and the domains below which a name is searched.
#[derive(Debug, Default, PartialEq, Eq)]
struct ResolverConfig {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
}

/// Looks up the servers of `name` at `name_servers`, in the order of envoyproxy/ratelimit. The error is for people.
pub(super) async fn look_up(
    name: &SrvName,
    name_servers: &NameServers,
    random: &RandomGenerator,
) -> Result<Vec<Address>, String> {
    let config = match name_servers {
        NameServers::System => {
            // a few lines, which take no time
            let text = fs::read_to_string(RESOLV_CONF);
            ResolverConfig::parse(&text.map_err(|error| format!("cannot read {RESOLV_CONF}: {error}"))?)
        }
        NameServers::List(servers) => ResolverConfig { servers: servers.clone(), search: Vec::new() },
    };
    let searched = config.search.iter().filter_map(|domain| name.below(domain));
    for name in std::iter::once(name.clone()).chain(searched) {
        if let Some(servers) = ask_any(&config.servers, &name, random).await? {
            return Ok(servers);
        }
    }
    Err(format!("{name} has no SRV records"))
}

/// Asks `servers` one after the other until one answers. Returns none if there are no such records.
async fn ask_any(
    servers: &[SocketAddr],
    name: &SrvName,
    random: &RandomGenerator,
) -> Result<Option<Vec<Address>>, String> {
    let mut error = format!("{RESOLV_CONF} names no server");
    for server in servers.iter().cycle().take(ATTEMPTS * servers.len()) {
        let id = u16::try_from(random.next() & 0xffff).unwrap_or_default();
        error = match timeout(TIMEOUT, ask(*server, name, id)).await {
            Ok(Ok(Answer::Servers(servers))) => return Ok(Some(servers)),
            Ok(Ok(Answer::NoRecords)) => return Ok(None),
            Ok(Ok(Answer::Failed(code))) => format!("{server} fails with code {code}"),
            Ok(Ok(Answer::Truncated)) => format!("the answer of {server} is truncated"),
            Ok(Ok(Answer::Malformed)) => format!("the answer of {server} is malformed"),
            Ok(Err(error)) => format!("{server}: {error}"),
            Err(_) => format!("{server} does not answer"),
        };
    }
    Err(format!("cannot look up {name}: {error}"))
}

/// Asks `server`, over TCP if the answer is too long for a datagram.
async fn ask(server: SocketAddr, name: &SrvName, id: u16) -> io::Result<Answer> {
    let query = name.query(id);
    let local: SocketAddr = if server.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut message = vec![0; usize::from(MAX_ANSWER)];
    loop {
        let length = socket.recv(&mut message).await?;
        match parse_answer(&message[..length], id) {
            Some(Answer::Truncated) => break,
            Some(answer) => return Ok(answer),
            // not the answer to this query
            None => {}
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(query.len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).await?;
    let length = stream.read_u16().await?;
    message.resize(usize::from(length), 0);
    stream.read_exact(&mut message).await?;
    // nothing else can arrive on this connection
    Ok(parse_answer(&message, id).unwrap_or(Answer::Malformed))
}

// === impl ResolverConfig ===

impl ResolverConfig {
    /// Parses `text`. Lines that are not understood have no effect, as in resolv.conf(5).
    fn parse(text: &str) -> Self {
        const PORT: u16 = 53;
        let mut config = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|address| address.parse().ok());
                    config.servers.extend(address.map(|address| SocketAddr::new(address, PORT)));
                }
                // the last one applies
                Some("search" | "domain") => {
                    config.search = words.map(|domain| domain.trim_end_matches('.').to_owned()).collect();
                }
                _ => {}
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_and_domains_are_read() {
        let text = "# made by the kubelet\nnameserver 10.96.0.10\nnameserver ::1\nnameserver fe80::x\n\
                    search a.svc.cluster.local svc.cluster.local.\noptions ndots:5\n";
        let config = ResolverConfig::parse(text);
        assert_eq!(config.servers, ["10.96.0.10:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
        assert_eq!(config.search, ["a.svc.cluster.local", "svc.cluster.local"]);
    }

    #[tokio::test]
    async fn an_answer_of_a_name_server_is_found_and_stray_ones_are_ignored() {
        let server = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = server.local_addr().expect("its address");
        let answering = tokio::spawn(async move {
            let mut query = [0; 512];
            let (length, client) = server.recv_from(&mut query).await.expect("a query");
            let question = &query[12..length - 11];
            let answer = |id: [u8; 2]| {
                let header = [id[0], id[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
                let record = [0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 9, 0, 0, 0, 0, 0x2b, 0xcb, 1, b'm', 0];
                [&header[..], question, &record].concat()
            };
            for id in [[query[0] ^ 1, query[1]], [query[0], query[1]]] {
                server.send_to(&answer(id), client).await.expect("it is sent");
            }
        });
        let name = SrvName::parse("_memcache._tcp.example.org").expect("it is valid");
        let found = ask_any(&[address], &name, &RandomGenerator::new()).await;
        assert_eq!(found, Ok(Some(vec![Address::tcp("m", 11_211)])));
        answering.await.expect("it has answered");
    }

    #[tokio::test]
    async fn without_a_name_server_the_error_says_so() {
        let name = SrvName::parse("_memcache._tcp.example.org").expect("it is valid");
        let error = ask_any(&[], &name, &RandomGenerator::new()).await.expect_err("there is none");
        assert!(error.contains("names no server"), "{error}");
    }
}

//! A server on loopback, a client, and upstreams whose behaviour each test chooses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_meta::ambient::Ambient;
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use userspace_dns::clients::Clients;
use userspace_dns::cluster::{PodMode, Records, Service, Settings, Slice, Zone};
use userspace_dns::corefile::Corefile;
use userspace_dns::engine::Engine;
use userspace_dns::metrics::Metrics;
use userspace_dns::routes::Routes;
use userspace_dns::server::Sockets;

/// The time that ends a test that hangs; none judges how long something takes.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A running server.
pub struct Server {
    pub engine: Arc<Engine>,
    pub address: SocketAddr,
    _stop: tokio_util::sync::DropGuard,
}

/// Returns a zone with Service shop/web, headless shop/many with `many` endpoints, and shop/out, which leads
/// to `www.example.org`.
pub fn zone(many: usize) -> Zone {
    let mut zone = Zone::new(Settings {
        domain: userspace_dns::name::Name::parse("cluster.local").unwrap(),
        ttl: 30,
        pods: PodMode::Insecure,
        servers: vec!["10.96.0.10".parse().unwrap()],
        networks: Vec::new(),
    });
    zone.set_complete();
    zone.set_namespace("shop", true);
    let mut add = |name: &str, spec: Value, endpoints: Vec<Value>| {
        let metadata = json!({"namespace": "shop", "name": name});
        let object = json!({"metadata": metadata, "spec": spec});
        let service = Service::of(serde_json::from_value(object).unwrap());
        let slice = json!({
            "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080}],
        });
        let slice = Slice::of(serde_json::from_value(slice).unwrap());
        zone.set_service("shop", name, Some(Records::compile(&service, &[slice])));
    };
    let ports = json!([{"name": "http", "port": 80}]);
    add("web", json!({"clusterIPs": ["10.96.0.1"], "ports": ports}), Vec::new());
    let address = |number: usize| IpAddr::from([10, 244, (number / 250) as u8, (number % 250) as u8]);
    let endpoints =
        (0..many).map(|number| json!({"addresses": [address(number)], "hostname": format!("h{number}")}));
    add("many", json!({"clusterIPs": ["None"]}), endpoints.collect());
    add("out", json!({"type": "ExternalName", "externalName": "www.example.org"}), Vec::new());
    zone
}

impl Server {
    /// Starts a server with the zone of [`zone`] and a configuration.
    pub fn start(corefile: &str, many: usize) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), 0, corefile, many)
    }

    pub fn at(ip: IpAddr, port: u16, corefile: &str, many: usize) -> Self {
        let corefile = Corefile::parse(corefile).unwrap();
        let metrics = Arc::new(Metrics::default());
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let routes = Routes::build(&corefile, &read, &|_| false, &metrics, None);
        let engine = Arc::new(Engine::new(zone(many), routes, metrics, Ambient::system()));
        engine.clients.store(Arc::new(Clients::new([])));
        let (sockets, stop) = (Sockets::open(ip, port, 2).unwrap(), CancellationToken::new());
        let address = sockets.address;
        sockets.serve(&engine, &stop, &TaskTracker::new());
        Self { engine, address, _stop: stop.drop_guard() }
    }

    /// Asks by UDP from an address.
    pub async fn ask_from(&self, client: IpAddr, name: &str, kind: RecordType) -> Message {
        let socket = UdpSocket::bind((client, 0)).await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket.send(&question(name, kind)).await.unwrap();
        let mut buffer = vec![0; 4096];
        let length = tokio::time::timeout(ANSWER_TIMEOUT, socket.recv(&mut buffer)).await.unwrap().unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    }

    /// Asks by UDP.
    pub async fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.ask_from(Ipv4Addr::LOCALHOST.into(), name, kind).await
    }

    /// Asks by TCP, all questions on one connection.
    pub async fn ask_by_tcp(&self, questions: &[(&str, RecordType)]) -> Vec<Message> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut answers = Vec::new();
        for (name, kind) in questions {
            let question = question(name, *kind);
            stream.write_u16(question.len() as u16).await.unwrap();
            stream.write_all(&question).await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut message = vec![0; length.into()];
            stream.read_exact(&mut message).await.unwrap();
            answers.push(Message::from_vec(&message).unwrap());
        }
        answers
    }
}

/// Returns a query without EDNS.
pub fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

/// Returns the data of the answers as text.
pub fn answers(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| format!("{} {}", record.record_type(), record.data)).collect()
}

/// Returns the answer to a query, with an A record of a TTL.
pub fn address(query: &Message, ttl: u32, ip: [u8; 4]) -> Message {
    let mut message = reply(query, ResponseCode::NoError);
    let name = query.queries[0].name.clone();
    message.add_answer(Record::from_rdata(name, ttl, RData::A(Ipv4Addr::from(ip).into())));
    message
}

/// Returns an answer whose question is in lower case, whatever case it was asked in.
pub fn folded(query: &Message, ip: [u8; 4]) -> Message {
    let mut message = address(query, 30, ip);
    let lower = query.queries[0].name.to_lowercase();
    message.queries[0].set_name(lower);
    message
}

/// Returns an answer to a query without records.
pub fn reply(query: &Message, code: ResponseCode) -> Message {
    let mut message = Message::new(query.metadata.id, MessageType::Response, OpCode::Query);
    message.metadata.response_code = code;
    message.metadata.recursion_available = true;
    message.queries = query.queries.clone();
    message
}

/// The behaviour of an upstream: the answers to a query, and whether each is sent from another port.
pub type Behaviour = fn(&Message, Protocol) -> Vec<(Message, bool)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Udp,
    Tcp,
}

/// A fake upstream, which counts its queries by UDP.
pub struct Upstream {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Vec<u8>>>>,
    _stop: tokio_util::sync::DropGuard,
}

impl Upstream {
    pub async fn start(behaviour: Behaviour) -> Self {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let (asked, stop) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        let seen = Arc::clone(&asked);
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let mut buffer = vec![0; 4096];
            loop {
                let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
                seen.lock().unwrap().push(buffer[..length].to_vec());
                let query = Message::from_vec(&buffer[..length]).unwrap();
                for (answer, elsewhere) in behaviour(&query, Protocol::Udp) {
                    let from = if elsewhere { &other } else { &udp };
                    from.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
                }
            }
        }));
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut message = vec![0; length.into()];
                stream.read_exact(&mut message).await.unwrap();
                let query = Message::from_vec(&message).unwrap();
                for (answer, _) in behaviour(&query, Protocol::Tcp) {
                    let answer = answer.to_vec().unwrap();
                    stream.write_u16(answer.len() as u16).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        }));
        Self { address, asked, _stop: stop.drop_guard() }
    }

    /// Returns the number of queries by UDP; one that was repeated counts once.
    pub fn asked(&self) -> usize {
        self.asked.lock().unwrap().iter().collect::<BTreeSet<_>>().len()
    }

    /// Returns the number of datagrams.
    pub fn datagrams(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

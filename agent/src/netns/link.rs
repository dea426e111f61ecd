//! Netlink requests, made from a thread that is inside the namespace concerned.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::RawFd,
    time::{Duration, Instant},
};

use futures_util::TryStreamExt as _;
use netlink_packet_route::{
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, State},
    neighbour::NeighbourState,
    route::RouteScope,
    tc::{TcAttribute, TcFilterBpfOption, TcOption},
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType, netdevice::name_to_index, socket},
};

use super::{Filter, NetnsError, RUN_INTERFACE, Veth};

const MTU: u32 = 1500;
/// How long a veth may take to become operational, and how often to look.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(200);
/// `lo` has this index in every namespace.
const LOOPBACK: u32 = 1;

/// Drives one exchange on a runtime of this thread, whose netlink socket belongs to this thread's namespace.
pub(super) fn block_on<T>(act: impl Future<Output = Result<T, NetnsError>>) -> Result<T, NetnsError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(NetnsError::Thread)?
        .block_on(act)
}

fn connect() -> Result<Handle, NetnsError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NetnsError::Thread)?;
    tokio::spawn(connection);
    Ok(handle)
}

fn failed(step: &'static str) -> impl Fn(rtnetlink::Error) -> NetnsError {
    move |source| NetnsError::Netlink { step, source: Box::new(source) }
}

/// Takes EEXIST for success: the request was made before.
fn or_there(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -Errno::EXIST.raw_os_error() => {
            Ok(())
        }
        other => other,
    }
}

fn index_of(name: &str) -> Result<Option<u32>, NetnsError> {
    let probe = socket(AddressFamily::UNIX, SocketType::DGRAM, None)
        .map_err(|errno| NetnsError::Thread(errno.into()))?;
    match name_to_index(&probe, name) {
        Ok(index) => Ok(Some(index)),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(NetnsError::Thread(errno.into())),
    }
}

fn existing(name: &str) -> Result<u32, NetnsError> {
    index_of(name)?.ok_or_else(|| {
        NetnsError::Thread(io::Error::new(io::ErrorKind::NotFound, format!("no device `{name}`")))
    })
}

pub(super) async fn loopback_up() -> Result<(), NetnsError> {
    up(&connect()?, LOOPBACK, "taking `lo` up").await
}

async fn up(handle: &Handle, index: u32, step: &'static str) -> Result<(), NetnsError> {
    let message = LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build();
    handle.link().set(message).execute().await.map_err(failed(step))
}

/// The gateway's address on `lo`.
pub(super) async fn serve(gateway: Ipv4Addr) -> Result<(), NetnsError> {
    let handle = connect()?;
    up(&handle, LOOPBACK, "taking `lo` up").await?;
    let added = handle.address().add(LOOPBACK, IpAddr::V4(gateway), 32).execute().await;
    or_there(added).map_err(failed("adding the gateway's address"))
}

/// A veth whose peer is born inside the run's namespace, and the neighbour behind it.
pub(super) async fn lay(veth: &Veth, run: RawFd) -> Result<u32, NetnsError> {
    let handle = connect()?;
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(RUN_INTERFACE)
        .address(veth.mac.to_vec())
        .arp(false)
        .mtu(MTU)
        .setns_by_fd(run)
        .build();
    let message = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
        .name(veth.name.as_str())
        .address(veth.gateway_mac.to_vec())
        .arp(false)
        .mtu(MTU)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build();
    handle.link().add(message).execute().await.map_err(failed("creating the veth"))?;
    let index = existing(&veth.name)?;
    neighbour(&handle, index, veth.addr, &veth.mac).await?;
    Ok(index)
}

async fn neighbour(handle: &Handle, index: u32, addr: Ipv4Addr, mac: &[u8]) -> Result<(), NetnsError> {
    handle
        .neighbours()
        .add(index, IpAddr::V4(addr))
        .link_layer_address(mac)
        .state(NeighbourState::Permanent)
        .replace()
        .execute()
        .await
        .map_err(failed("adding the neighbour"))
}

/// The run's side: address, up.
pub(super) async fn open_run(veth: &Veth) -> Result<(), NetnsError> {
    let handle = connect()?;
    let index = existing(RUN_INTERFACE)?;
    let added = handle.address().add(index, IpAddr::V4(veth.addr), 32).execute().await;
    or_there(added).map_err(failed("adding the run's address"))?;
    up(&handle, index, "taking the run's end of the veth up").await
}

/// The run's side, once the other is up: one route, one neighbour.
///
/// The end that was taken up first gets its queue from a kernel worker, and drops what is sent before: a first
/// SYN would be repeated after a second only. The worker sets the operational state and the queue under the
/// lock that adding a route takes, so after both packets pass.
pub(super) async fn route_run(veth: &Veth, gateway: Ipv4Addr) -> Result<(), NetnsError> {
    let handle = connect()?;
    let index = existing(RUN_INTERFACE)?;
    operational(&handle, index).await?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(gateway, 32)
        .output_interface(index)
        .scope(RouteScope::Link)
        .pref_source(veth.addr)
        .build();
    handle.route().add(route).replace().execute().await.map_err(failed("adding the route to the gateway"))?;
    neighbour(&handle, index, gateway, &veth.gateway_mac).await
}

/// Waits until a device is operational (RFC 2863).
async fn operational(handle: &Handle, index: u32) -> Result<(), NetnsError> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let mut links = Box::pin(handle.link().get().match_index(index).execute());
        let link = links.try_next().await.map_err(failed("reading the state of the veth"))?;
        let state = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::OperState(State::Up));
        if link.is_some_and(|link| link.attributes.iter().any(state)) {
            return Ok(());
        }
        // This thread does nothing else.
        std::thread::sleep(POLL);
    }
    Err(NetnsError::Down(PATIENCE))
}

/// The gateway's side: up, one route.
pub(super) async fn open_gateway(veth: &Veth) -> Result<(), NetnsError> {
    let handle = connect()?;
    up(&handle, veth.ifindex, "taking the gateway's end of the veth up").await?;
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(veth.addr, 32)
        .output_interface(veth.ifindex)
        .scope(RouteScope::Link)
        .build();
    handle.route().add(route).replace().execute().await.map_err(failed("adding the route to the run"))
}

pub(super) async fn delete(name: &str) -> Result<(), NetnsError> {
    let Some(index) = index_of(name)? else { return Ok(()) };
    connect()?.link().del(index).execute().await.map_err(failed("deleting the veth"))
}

/// The first BPF filter at clsact ingress.
pub(super) async fn filter_at(ifindex: u32) -> Result<Option<Filter>, NetnsError> {
    let handle = connect()?;
    let index = i32::try_from(ifindex).unwrap_or(i32::MAX);
    let mut filters = Box::pin(handle.traffic_filter(index).get().ingress().execute());
    loop {
        match filters.try_next().await {
            Ok(Some(filter)) => {
                let id = filter.attributes.iter().find_map(|attribute| match attribute {
                    TcAttribute::Options(options) => options.iter().find_map(|option| match option {
                        TcOption::Bpf(TcFilterBpfOption::ProgId(id)) => Some(*id),
                        _ => None,
                    }),
                    _ => None,
                });
                // The upper half of `tcm_info` is the priority (rtnetlink(7)).
                let [.., low, high] = filter.header.info.to_le_bytes();
                if let Some(program) = id {
                    return Ok(Some(Filter { program, priority: u16::from_le_bytes([low, high]) }));
                }
            }
            Ok(None) => return Ok(None),
            // No clsact qdisc, or no such device.
            Err(rtnetlink::Error::NetlinkError(error))
                if [Errno::INVAL, Errno::NODEV, Errno::NOENT]
                    .iter()
                    .any(|errno| error.raw_code() == -errno.raw_os_error()) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed("reading the packet filter")(error)),
        }
    }
}

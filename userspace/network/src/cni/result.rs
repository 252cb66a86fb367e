//! Results in the formats of the specification's versions.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::attach::{Attached, gateway};
use super::request::{Attachment, Request};
use crate::netlink::{Mac, host_prefix};

/// Returns the result of ADD.
pub(super) fn of_attachment(request: &Request, attached: &Attached) -> Value {
    let ips: Vec<_> = attached.addresses.iter().map(|address| ip(&request.version, *address, 1)).collect();
    let routes: Vec<_> = attached
        .addresses
        .iter()
        .map(|address| json!({ "dst": default_route(*address), "gw": gateway(*address) }))
        .collect();
    json!({
        "cniVersion": request.version,
        "interfaces": [
            { "name": attached.host_interface, "mac": mac(attached.host_mac) },
            {
                "name": request.attachment.interface,
                "mac": mac(attached.pod_mac),
                "sandbox": request.attachment.netns,
            },
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    })
}

/// Returns the result of the loopback plugin: the interface and its addresses.
pub(super) fn of_loopback(version: &str, attachment: &Attachment) -> Value {
    let mut ips = vec![ip_with_prefix(version, "127.0.0.1/8", 4, None, 0)];
    ips.push(ip_with_prefix(version, "::1/128", 6, None, 0));
    json!({
        "cniVersion": version,
        "interfaces": [
            { "name": attachment.interface, "mac": mac([0; 6]), "sandbox": attachment.netns },
        ],
        "ips": ips,
        "dns": {},
    })
}

fn ip(version: &str, address: IpAddr, interface: usize) -> Value {
    let text = format!("{address}/{}", host_prefix(address));
    let family = if address.is_ipv4() { 4 } else { 6 };
    ip_with_prefix(version, &text, family, Some(gateway(address)), interface)
}

fn ip_with_prefix(
    version: &str,
    address: &str,
    family: u8,
    gateway: Option<IpAddr>,
    interface: usize,
) -> Value {
    let mut ip = json!({ "address": address, "interface": interface });
    if let Some(gateway) = gateway {
        ip["gateway"] = json!(gateway);
    }
    // Before 1.0.0 there was a field for the family.
    if version.starts_with("0.") {
        ip["version"] = json!(family.to_string());
    }
    ip
}

fn default_route(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "0.0.0.0/0" } else { "::/0" }
}

fn mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

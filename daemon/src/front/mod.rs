//! Fronts: where requests come from. Each is a [`crate::port::Port`]: it speaks a protocol on sockets and hands the engine requests.

pub mod nbd;

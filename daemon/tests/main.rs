//! The NBD front: real sockets, real clients, behind them a volume in memory.

mod world;

mod clients;
mod front;
mod front_order;
mod front_origin;
mod front_room;
mod security;
mod tls;

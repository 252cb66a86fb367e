//! Whole clusters by seed. `HAWSER_SIM_SEED=7` repeats one, `HAWSER_SIM_SEEDS=100` tries many,
//! `HAWSER_SIM_LOG=info` shows what happens.

mod budgets;
mod crashes;
mod daemons;
mod faults;
mod nodes;
mod policies;
mod repeat;
mod rollout;

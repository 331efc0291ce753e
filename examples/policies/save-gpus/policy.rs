//! Work without GPUs stays off hosts that have some, as long as others have room: best fit, with a surcharge.
#![cfg_attr(target_arch = "wasm32", no_std)]

#[macro_use]
mod paceline;

use paceline::{Column, Policy, Request, Table, GPU, LEFTOVER, TOTAL, WHOLE};

/// What a host with GPUs costs more: half of the largest host.
const SURCHARGE: i32 = WHOLE / 2;

struct SaveGPUs {
    leftover: Column,
    gpus: Option<Column>, // None: nobody has any, or this request wants them
}

impl Policy for SaveGPUs {
    fn prepare(&mut self, table: &Table, request: &Request) -> bool {
        let wants = request.needs[GPU as usize] > 0;
        self.gpus = if wants { None } else { table.column(TOTAL + GPU) };
        match table.column(LEFTOVER) {
            Some(leftover) => self.leftover = leftover,
            None => return false,
        }
        true
    }

    fn cost(&self, row: usize) -> i32 {
        let has = self.gpus.map_or(false, |gpus| gpus[row].get() > 0);
        // Halved, so that the surcharge fits beside it.
        self.leftover[row].get() / 2 + if has { SURCHARGE } else { 0 }
    }
}

policy!(
    "name save-gpus\nversion 1.0.0\nabi 1.0\nkinds place\ncolumns leftover free.* total.gpu device_whole device_largest\nsdk rust 1.0.0\n",
    SaveGPUs { leftover: &[], gpus: None }
);

// Each task goes to the host that runs the fewest: what is lost with a host is little.
import { Policy, Request, TASKS, column, describe, place, value } from "./paceline";
export { paceline_abi, paceline_arena } from "./paceline";

class FewestTasks extends Policy {
  tasks: usize = 0;

  prepare(_: Request): bool {
    this.tasks = column(TASKS);
    return this.tasks != 0;
  }

  cost(row: u32): i32 {
    return value(this.tasks, row);
  }
}

const policy = new FewestTasks();

export function paceline_place(requests: u32): i64 {
  return place(policy, requests);
}

export function paceline_describe(): i64 {
  return describe("name fewest-tasks\nversion 1.0.0\nabi 1.0\nkinds place\ncolumns tasks free.* device_whole device_largest\nsdk assemblyscript 1.0.0\n");
}

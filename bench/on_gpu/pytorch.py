"""torch_smoke.py WHAT: one thing that PyTorch does, in a slice or not; says what NVML and PyTorch see."""
import os, sys, time
import torch
MIB = 1 << 20
SECONDS = float(os.environ.get('SECONDS_EACH', '6'))
def nvml():
    import pynvml
    pynvml.nvmlInit()
    h = pynvml.nvmlDeviceGetHandleByIndex(0)
    mine = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(h) if p.pid == os.getpid()]
    return (mine[0] or 0) // MIB if mine else None
what = ""
def say(**figures):
    free, total = torch.cuda.mem_get_info()
    print(what, {"free": free // MIB, "total": total // MIB, "reserved": torch.cuda.memory_reserved() // MIB, "nvml": nvml()} | figures, flush=True)
def child(queue, done):
    tensor = queue.get()
    queue.put(float(tensor.sum())); done.wait()
def run(kind):
    global what
    what = kind
    x = torch.zeros(1, device="cuda"); torch.cuda.synchronize(); say(step="context")
    if what in ("oom",):
        held = []
        for again in range(2):
            try:
                while True: held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError: pass
            say(got=64 * len(held)); held.clear(); torch.cuda.empty_cache()
        say(step="freed")
    elif what == "step":
        net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(24)]).cuda(); opt = torch.optim.SGD(net.parameters(), 1e-3)
        data = torch.randn(512, 2048).pin_memory()
        def once():
            opt.zero_grad(set_to_none=True); net(data.cuda(non_blocking=True)).square().mean().backward(); opt.step()
        for _ in range(20): once()
        torch.cuda.synchronize(); begun = time.monotonic(); n = 0
        while time.monotonic() - begun < SECONDS: once(); n += 1
        torch.cuda.synchronize(); say(steps_per_s=round(n / (time.monotonic() - begun), 1))
    elif what == "graph":
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for _ in range(3): b = a @ a
        torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            for _ in range(20): b = a @ a
        torch.cuda.synchronize(); begun = time.monotonic(); n = 0
        while time.monotonic() - begun < SECONDS: g.replay(); n += 1; (n % 4) or torch.cuda.synchronize()
        torch.cuda.synchronize(); say(replays_per_s=round(n / (time.monotonic() - begun), 1))
    elif what == "idle":
        """Bursts of short kernels, learned of by polling pinned memory: no wait call."""
        a = torch.ones(256, 256, device="cuda"); flag = torch.zeros(1, pin_memory=True); begun = time.monotonic(); n = 0
        while time.monotonic() - begun < SECONDS:
            for _ in range(4): b = a @ a
            flag.copy_(b[0, :1], non_blocking=True); time.sleep(0.02); n += 1
        say(bursts_per_s=round(n / (time.monotonic() - begun), 1))
    elif what == "copies":
        """A copy of 256 MiB between short kernels on one stream."""
        src = torch.empty(256 * MIB, dtype=torch.uint8).pin_memory(); dst = torch.empty_like(src, device="cuda"); a = torch.ones(256, 256, device="cuda"); begun = time.monotonic(); n = 0
        while time.monotonic() - begun < SECONDS:
            b = a @ a; dst.copy_(src, non_blocking=True); b = a @ a; n += 1; torch.cuda.synchronize()
        say(rounds_per_s=round(n / (time.monotonic() - begun), 1))
    elif what == "loader":
        from torch.utils.data import DataLoader, TensorDataset
        for (t,) in DataLoader(TensorDataset(torch.randn(4096, 256)), batch_size=64, num_workers=4, pin_memory=True): t.cuda(non_blocking=True).sum()
        torch.cuda.synchronize(); say(step="done")
    elif what == "ipc":
        import torch.multiprocessing as mp
        ctx = mp.get_context("spawn"); q = ctx.SimpleQueue(); done = ctx.Event(); p = ctx.Process(target=child, args=(q, done)); p.start()
        t = torch.ones(256 * MIB // 4, device="cuda"); q.put(t); time.sleep(8); say(sum=q.get()); done.set(); p.join()
    elif what == "nccl":
        import torch.distributed as dist
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}; dist.init_process_group("nccl", rank=0, world_size=1)
        t = torch.ones(1 << 20, device="cuda"); dist.all_reduce(t); torch.cuda.synchronize(); say(step="done"); dist.destroy_process_group()
    elif what == "compile":
        f = torch.compile(lambda v: torch.nn.functional.gelu(v @ v) + 1); f(torch.randn(1024, 1024, device="cuda")); torch.cuda.synchronize(); say(step="done")

if __name__ == "__main__":
    for kind in sys.argv[1].split(","):
        run(kind)

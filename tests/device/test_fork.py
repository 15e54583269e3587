"""Forked children of a process that has a client: an explanation instead of a hang."""


def test_child_is_told(run_python):
    out = run_python(
        """
        import os, torch
        torch.tpu.init()
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                torch.tpu.init()
                message = "no error"
            except RuntimeError as error:
                message = str(error)
            torch.manual_seed(1)  # seeds what it can, and leaves the device alone
            facts = (torch.tpu._is_in_bad_fork(), torch.tpu.is_initialized())
            os.write(write, f"{facts} {torch.tpu.device_count()} {message}".encode())
            os._exit(0)
        os.waitpid(pid, 0)
        print(os.read(read, 10000).decode().splitlines()[0])
        assert torch.tpu.is_initialized() and not torch.tpu._is_in_bad_fork()
        torch.tpu.synchronize()
        """,
        TORCHTPU_CPU_DEVICES="1",
    )
    assert out.startswith("(True, False) 1 Cannot re-initialize TPU in forked subprocess.")
    assert "'spawn' start method" in out


def test_child_of_a_process_without_a_client_is_free(run_python):
    out = run_python(
        """
        import os, torch
        assert not torch.tpu.is_initialized()
        if (pid := os.fork()) == 0:
            torch.tpu.init()
            os._exit(0 if torch.tpu.is_initialized() else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert out == "0"


def test_child_may_drop_tensors_it_inherits(run_python):
    out = run_python(
        """
        import os, torch
        x = torch.ones(1000).to("tpu")
        y = x + 1
        if (pid := os.fork()) == 0:
            del x, y
            torch.ones(3).sum()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), y.cpu().sum().item())
        """
    )
    assert out == "0 2000.0"


def test_child_that_computes_is_told(run_python):
    out = run_python(
        """
        import os, torch
        x = torch.ones(4).to("tpu")
        x = x + 1
        if (pid := os.fork()) == 0:
            try:
                x + 1
            except RuntimeError as error:
                os._exit(0 if "forked subprocess" in str(error) else 2)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert out == "0"

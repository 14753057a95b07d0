"""One app for both kinds of messages; each imports only what it needs, and torch in both."""

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from the_work import SAMPLES, local_round, noted, samples

app = ClientApp()


@app.train("bare")
def bare(message: Message, context: Context) -> Message:
    with noted("bare", str(context.run_config["out"])):
        models = {name: torch.from_numpy(array.numpy()) for name, array in message.content["arrays"].items()}
        best, loss, change = local_round(models, int(context.node_config["partition-id"]))
        arrays = ArrayRecord({name: Array(value.numpy()) for name, value in change.items()})
        reported = MetricRecord({"cluster": best, "loss": loss, "samples": SAMPLES})
        return Message(RecordDict({"arrays": arrays, "metrics": reported}), reply_to=message)


@app.train()
def coterie(message: Message, context: Context) -> Message:
    with noted("coterie", str(context.run_config["out"])):
        from coterie import from_arrays
        from coterie.flower.node import make_client_app

        number = int(context.node_config["partition-id"])
        return make_client_app(lambda _: from_arrays({f"client-{number}": samples(number)}))(message, context)

import os

import django
from django.conf import settings
from django.db import connection, models, transaction
from psycopg.conninfo import conninfo_to_dict

from batchline import Batchline

# In a project, this is settings.py.
parts = conninfo_to_dict(os.environ["BATCHLINE_DATABASE_URL"])
names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
database = {name: str(parts[part]) for name, part in names.items() if part in parts}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}})
django.setup()

# tasks.py
app = Batchline()


@app.operation
def send_receipt(order_id: int) -> str:
    order = Order.objects.get(id=order_id)
    return f"mail to {order.address}"


# models.py
class Order(models.Model):
    address = models.TextField()

    class Meta:
        app_label = "shop"


# views.py
def buy(address: str) -> str:
    """The order and the mail about it: both or neither."""
    with transaction.atomic():
        order = Order.objects.create(address=address)
        return app.sync.submit(send_receipt, [order.id], connection=connection.connection).id


if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    with transaction.atomic():
        buy("ann@example.com")
        transaction.set_rollback(True)  # No order, no batch.
    batch = app.sync.batch(buy("bob@example.com"))
    batch.wait()
    print([result.value for result in batch.results()])

from dataclasses import dataclass

from batchline import Batchline, Retry

app = Batchline()


@dataclass
class Photo:
    name: str
    width: int = 200


@app.operation(max_attempts=5, timeout=60)
def resize(photo: Photo) -> str:
    try:
        return f"{photo.name} at {photo.width}"
    except OSError as error:
        raise Retry(str(error), after=30) from error


if __name__ == "__main__":
    print(app.map(resize, [Photo("1.jpg"), Photo("2.jpg"), Photo("3.jpg")]))

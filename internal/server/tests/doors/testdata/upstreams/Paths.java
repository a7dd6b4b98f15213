import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** A server of the test of paths: its arguments are settings of Spring Boot. What a handler answers names it. */
@EnableAutoConfiguration(excludeName = {
  "org.springframework.boot.autoconfigure.security.servlet.SecurityAutoConfiguration",
  "org.springframework.boot.autoconfigure.security.servlet.UserDetailsServiceAutoConfiguration"
})
@RestController
public class Paths {
  public static void main(String[] args) {
    SpringApplication.run(Paths.class, args);
  }

  private static ResponseEntity<String> reached(String name) {
    return ResponseEntity.ok().header("X-Reached", name).body(name);
  }

  @PostMapping("/login")
  public ResponseEntity<String> login() {
    return reached("login");
  }

  @PostMapping("/Sign-In/")
  public ResponseEntity<String> signin() {
    return reached("signin");
  }

  @PostMapping("/api/pay/{id}")
  public ResponseEntity<String> pay() {
    return reached("pay");
  }

  @GetMapping("/report")
  public ResponseEntity<String> report() {
    return reached("report");
  }
}

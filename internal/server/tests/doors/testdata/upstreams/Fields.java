import jakarta.servlet.http.HttpServletRequest;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Objects;
import java.util.function.Predicate;
import javax.crypto.spec.SecretKeySpec;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.http.ResponseEntity;
import org.springframework.security.core.AuthenticationException;
import org.springframework.security.oauth2.jwt.JwtException;
import org.springframework.security.oauth2.jwt.NimbusJwtDecoder;
import org.springframework.security.oauth2.server.resource.web.DefaultBearerTokenResolver;
import org.springframework.security.web.authentication.www.BasicAuthenticationConverter;
import org.springframework.web.bind.annotation.CookieValue;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/**
 * A server of the test of spellings: its arguments are settings of Spring Boot. What it takes for the credential of
 * ada it answers with ok.
 */
@EnableAutoConfiguration(excludeName = {
  "org.springframework.boot.autoconfigure.security.servlet.SecurityAutoConfiguration",
  "org.springframework.boot.autoconfigure.security.servlet.UserDetailsServiceAutoConfiguration"
})
@RestController
public class Fields {
  private static final String KEY = "k-ada";

  private final NimbusJwtDecoder decoder = NimbusJwtDecoder.withSecretKey(
    new SecretKeySpec(System.getenv("JWT_SECRET").getBytes(StandardCharsets.US_ASCII), "HmacSHA256")).build();
  private final DefaultBearerTokenResolver resolver = new DefaultBearerTokenResolver();

  public static void main(String[] args) {
    SpringApplication.run(Fields.class, args);
  }

  private static ResponseEntity<String> judge(boolean ok) {
    return ok ? ResponseEntity.ok("ok") : ResponseEntity.status(403).body("no");
  }

  private static String field(HttpServletRequest request) {
    return Objects.requireNonNullElse(request.getHeader("Authorization"), "");
  }

  /** Reports whether one of the ways to read a token finds one that is taken. */
  private boolean token(HttpServletRequest request, Predicate<String> taken) {
    String field = field(request);
    String[] words = field.trim().split("\\s+");
    try {
      String token = resolver.resolve(request);
      if (token != null && taken.test(token)) {
        return true;
      }
    } catch (AuthenticationException e) {
      // another one may
    }
    // as in many a tutorial
    return words.length == 2 && words[0].equalsIgnoreCase("bearer") && taken.test(words[1])
      || field.regionMatches(true, 0, "bearer", 0, 6) && field.length() > 7 && taken.test(field.substring(7).trim());
  }

  private boolean signed(String token) {
    try {
      return "ada".equals(decoder.decode(token).getSubject());
    } catch (JwtException e) {
      return false;
    }
  }

  /** Reads as tutorials do: Java has a decoder that passes over what is not base64. */
  private static boolean loose(String field) {
    try {
      return field.regionMatches(true, 0, "basic", 0, 5)
        && new String(Base64.getMimeDecoder().decode(field.substring(5).trim()), StandardCharsets.ISO_8859_1).equals("ada:s3cret");
    } catch (IllegalArgumentException e) {
      return false;
    }
  }

  @GetMapping("/basic")
  public ResponseEntity<String> basic(HttpServletRequest request) {
    boolean ok = loose(field(request));
    try {
      var read = new BasicAuthenticationConverter().convert(request);
      ok |= read != null && read.getName().equals("ada") && read.getCredentials().equals("s3cret");
    } catch (AuthenticationException e) {
      // it cannot be read so
    }
    return judge(ok);
  }

  @GetMapping("/jwt")
  public ResponseEntity<String> jwt(HttpServletRequest request) {
    return judge(token(request, this::signed));
  }

  @GetMapping({"/bearer", "/authorization"})
  public ResponseEntity<String> bearer(HttpServletRequest request) {
    return judge(token(request, KEY::equals));
  }

  @GetMapping("/header")
  public ResponseEntity<String> header(@RequestHeader(name = "X-Api-Key", defaultValue = "") String key) {
    return judge(key.equals(KEY));
  }

  @GetMapping("/query")
  public ResponseEntity<String> query(@RequestParam(name = "key", defaultValue = "") String key, HttpServletRequest request) {
    return judge(key.equals(KEY) || KEY.equals(request.getParameter("key")));
  }

  @GetMapping("/cookie")
  public ResponseEntity<String> cookie(@CookieValue(name = "sid", defaultValue = "") String sid) {
    return judge(sid.equals(KEY));
  }

  @GetMapping("/session")
  public ResponseEntity<String> session(@CookieValue(name = "sess", defaultValue = "") String session) {
    return judge(signed(session));
  }

  @GetMapping("/signed-header")
  public ResponseEntity<String> signedHeader(@RequestHeader(name = "X-Token", defaultValue = "") String token) {
    return judge(signed(token));
  }

  @GetMapping("/signed-query")
  public ResponseEntity<String> signedQuery(@RequestParam(name = "token", defaultValue = "") String token) {
    return judge(signed(token));
  }
}
